"""What a step can call: tools made from typed functions, the registry that holds them, and the built-in tools."""
