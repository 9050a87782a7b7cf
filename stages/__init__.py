"""Entry points of the pipeline: `python -m stages.NAME`, run from the project root. They only read params, call `pipeline` and
write outputs.

A stage process imports this package first. So environment variables that libraries read during their import are set here.
"""

from pipeline.utils.environment import set_defaults

set_defaults()
