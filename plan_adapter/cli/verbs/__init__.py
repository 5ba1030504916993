"""One module for each verb, named as the verb."""
