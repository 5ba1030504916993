"""The facts of a plan, a gate or a run, and their renderings: the only writer of prose about them."""
