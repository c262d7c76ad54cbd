"""How deliveries reach clients: waiting pulls, pumps of push consumers, subscriptions."""
