"""From the flat namespace of earlier versions, ``(user, "memories")``, to the CoALA categories."""
