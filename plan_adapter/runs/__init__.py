"""How one run is approved, started, resumed, rolled back and ended.

The public names are in the stub next to this file; the modules are internal.
"""

from plan_adapter.public_names import offer_names

offer_names(__name__)
