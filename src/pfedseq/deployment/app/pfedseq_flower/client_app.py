"""The client app: every message is answered from the site's own folder."""

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

app = ClientApp()


@app.train()
@app.evaluate()
@app.query()
def answer(message: Message, context: Context) -> Message:
    """The site's reply to a message."""
    from pfedseq.deployment.site_app import answered

    content = answered(message.content, context.node_config, context.run_config)
    return Message(content, reply_to=message)
