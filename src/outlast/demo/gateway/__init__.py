"""The steps of `outlast gateway demo`; its output is in `outlast.cli.commands.gateway_commands.demo`.

rabbitmq        a real broker of the demo's own, which is killed and started again
gateway_files   the gateway's directory: settings, credentials and one template
line_training   the training of that template
up_process      `outlast gateway up` as a process, which is killed and started again
sender          the application's side of the broker: sends requests, takes answers and counts them
cases           the five requests, and the answers that they must get
watcher         what the gateway's record and journal say about a request
"""
