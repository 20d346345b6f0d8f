"""Messages of Kafka's coordinators: groups, transactions, producers."""
