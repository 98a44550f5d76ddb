"""The commands of `headrace.tools`: their options, and what people and scripts are shown of the work."""
