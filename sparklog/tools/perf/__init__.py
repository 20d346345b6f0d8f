"""Records a second of a store and a machine, and their waits, as Kafka's performance tools measure them."""

MIB = 1 << 20
"""What Kafka's tools call MB."""
