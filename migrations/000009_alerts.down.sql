DROP TABLE alert_replicas, alert_judgement, alert_states, outbox, incidents;
