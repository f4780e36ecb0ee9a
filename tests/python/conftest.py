"""Loads support/plugin.py, whose hooks and fixtures the tests in weights/tests/python have, too."""


def pytest_configure(config):
    """Registers the plugin once, whichever of the folders is collected first."""
    config.pluginmanager.import_plugin("support.plugin")
