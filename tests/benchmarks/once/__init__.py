"""One approved effect is one effect: an approved call is killed at each place, by us and by the programs of peers.

`programs` has one program for each library, written as its own documentation tells: check an order, ask a person, charge it, tell the
customer. Each is killed with SIGKILL at a place, started again until it ends, and judged by what arrived in the outside world.
"""
