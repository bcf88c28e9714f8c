"""Declarations of pipelines, their registry, the settings of a deployment, and the plan that is made of all three."""
