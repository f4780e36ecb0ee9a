"""Loads the hooks and fixtures of the core's tests: tests/python/support/plugin.py."""


def pytest_configure(config):
    """Registers the plugin once, whichever of the folders is collected first."""
    config.pluginmanager.import_plugin("support.plugin")
