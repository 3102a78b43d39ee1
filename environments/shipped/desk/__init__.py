"""An order desk: tools on a small database, a policy, a simulated user."""
