"""What Pelton's own tests are made with: real servers, disks that fail, networks with hazards, checkers."""
