//! Lets the linker of macOS leave the interpreter's symbols to the program that loads the module.

fn main() {
    pyo3_build_config::add_extension_module_link_args();
}
