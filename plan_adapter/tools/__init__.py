"""What a step may call: tools from typed functions, the registry that holds them, and the built-in ones."""
