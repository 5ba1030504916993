"""What a step can call: tools made from typed functions, the registry that holds them, and the built-in tools.

The public names are in the stub next to this file; the modules are internal.
"""

from plan_adapter.public_names import offer_names

offer_names(__name__)
