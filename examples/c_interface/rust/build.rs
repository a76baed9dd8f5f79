//! Tells the linker where libgraphkit.so is. GRAPHKIT_HOME is the folder that `graphkit build --c-runtime` wrote.

fn main() {
    println!("cargo:rerun-if-env-changed=GRAPHKIT_HOME");
    let home = std::env::var("GRAPHKIT_HOME").expect("set GRAPHKIT_HOME to the folder with graphkit's C library");
    println!("cargo:rustc-link-search=native={home}/lib");
    println!("cargo:rustc-link-lib=dylib=graphkit");
    println!("cargo:rustc-link-arg=-Wl,-rpath,{home}/lib");
}
