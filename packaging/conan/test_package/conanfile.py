from pathlib import Path

from conan import ConanFile
from conan.tools.build import can_run
from conan.tools.cmake import CMake, cmake_layout


class Test(ConanFile):
    settings = "os", "compiler", "build_type", "arch"
    generators = "CMakeDeps", "CMakeToolchain"
    test_type = "explicit"

    def requirements(self):
        self.requires(self.tested_reference_str)

    def layout(self):
        cmake_layout(self)

    def build(self):
        weights = self.dependencies["safetensors-cpp"].options.weights
        cmake = CMake(self)
        cmake.configure(variables={"WEIGHTS": str(weights)})
        cmake.build()

    def test(self):
        if can_run(self):
            folder = Path(self.cpp.build.bindir).resolve()
            names = ["test_package", "test_package_c"]
            if self.dependencies["safetensors-cpp"].options.weights:
                names.append("test_package_weights")
            for name in names:
                self.run(f"{folder / name} test_package.safetensors", env="conanrun")
