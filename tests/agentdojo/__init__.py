"""AgentDojo's benchmark of prompt injections, with this package's gates between a model and the tools.

A scripted model does each user task and obeys each injection that it reads. That is an upper bound for an attacker, and no measure of a
model's skill. What a person at the gates sees, and whether a task or an attack succeeded, is real: the gates of a run, and AgentDojo's own
checks of its environment.
"""
