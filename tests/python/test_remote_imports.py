"""What is imported for URLs, and when: nothing before the first one, and never a framework."""

from support import children


def test_the_package_imports_nothing_of_it():
    children.run(
        """
        import safetensors
        safetensors.RangeReader
        try:
            import torch, safetensors.torch
        except ImportError:
            pass
        found = [name for name in sys.modules if name.startswith("safetensors._remote")]
        assert not found, found
        """
    )


def test_it_imports_no_framework_and_no_engine():
    children.run(
        """
        import pkgutil
        import safetensors._remote
        names = [module.name for module in pkgutil.iter_modules(safetensors._remote.__path__)]
        assert {"open", "http", "urls", "hub", "objects"} <= set(names)
        for name in names:
            __import__("safetensors._remote." + name)
        engines = {"numpy", "torch", "jax", "tensorflow", "obstore", "fsspec", "boto3", "requests"}
        assert not engines & sys.modules.keys(), engines & sys.modules.keys()
        """
    )
