"""The stages of a deployment in the serving process: pools of replicas, their workers, and an operator's commands."""
