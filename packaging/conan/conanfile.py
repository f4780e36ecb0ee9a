from conan import ConanFile
from conan.tools.build import check_min_cppstd
from conan.tools.cmake import CMake, CMakeDeps, CMakeToolchain, cmake_layout
from conan.tools.files import copy, get, rmdir

required_conan_version = ">=2.4"


class SafetensorsCpp(ConanFile):
    name = "safetensors-cpp"
    description = "Reading and writing safetensors files from C++ and C"
    license = "Apache-2.0"
    topics = ("tensors", "machine-learning", "serialization", "safetensors", "gguf")
    package_type = "library"
    languages = "C++"
    implements = ["auto_shared_fpic"]
    settings = "os", "compiler", "build_type", "arch"
    options = {"shared": [True, False], "fPIC": [True, False], "weights": [True, False]}
    default_options = {"shared": False, "fPIC": True, "weights": True}

    def layout(self):
        cmake_layout(self, src_folder="src")

    def requirements(self):
        # Headers only, which are compiled in.
        self.requires("rapidjson/cci.20230929", visible=False)
        self.requires("xxhash/0.8.3", visible=False)

    def validate(self):
        check_min_cppstd(self, 20)

    def build_requirements(self):
        self.tool_requires("cmake/[>=3.22]")

    def source(self):
        get(self, **self.conan_data["sources"][self.version], strip_root=True)

    def generate(self):
        toolchain = CMakeToolchain(self)
        toolchain.cache_variables["SAFETENSORS_BUILD_WEIGHTS"] = bool(self.options.weights)
        toolchain.cache_variables["FETCHCONTENT_FULLY_DISCONNECTED"] = True
        toolchain.generate()
        CMakeDeps(self).generate()

    def build(self):
        cmake = CMake(self)
        cmake.configure()
        cmake.build()

    def package(self):
        copy(self, "LICENSE", self.source_folder, f"{self.package_folder}/licenses")
        copy(self, "*", f"{self.source_folder}/LICENSES", f"{self.package_folder}/licenses")
        CMake(self).install()
        rmdir(self, f"{self.package_folder}/lib/cmake")
        rmdir(self, f"{self.package_folder}/lib/pkgconfig")

    def package_info(self):
        self.cpp_info.set_property("cmake_file_name", "safetensors")
        core = self.cpp_info.components["core"]
        core.set_property("cmake_target_name", "safetensors::safetensors")
        core.set_property("pkg_config_name", "safetensors")
        core.libs = ["safetensors"]
        if not self.options.shared:
            core.defines = ["SAFETENSORS_STATIC"]
        if self.settings.os in ("Linux", "FreeBSD"):
            core.system_libs = ["pthread", "dl"]
        if self.options.weights:
            weights = self.cpp_info.components["weights"]
            weights.set_property("cmake_target_name", "safetensors::weights")
            weights.set_property("pkg_config_name", "safetensors-weights")
            weights.libs = ["safetensors_weights"]
            weights.requires = ["core"]
        if self.options.shared:
            c = self.cpp_info.components["c"]
            c.set_property("cmake_target_name", "safetensors::c")
            c.set_property("pkg_config_name", "safetensors-c")
            c.libs = ["safetensors_c"]
