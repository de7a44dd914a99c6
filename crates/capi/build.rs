//! Gives the library its soname, by which programs find a version that keeps its promises.

fn main() {
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libunderseal.so.0");
    println!("cargo::rerun-if-changed=build.rs");
}
