"""The levers, objectives, legality and seed plans: turns a lever setting into a Deployment."""
