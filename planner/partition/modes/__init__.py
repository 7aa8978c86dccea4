"""Every way to partition that can be asked for by name, a file each but for those that search alike."""
