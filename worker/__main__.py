"""``python -m worker``: a worker with the settings of the environment."""

from worker.app import main

main()
