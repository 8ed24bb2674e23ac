//! Links the static plugin so that the functions that a cached run uses are next to each other.
//!
//! A page fault maps 64 KiB. Without a linker script, these functions are spread over the whole program, and the
//! resident memory is twice as large. A pattern in the script that matches no function has no effect. To generate the
//! script again:
//!
//! ```sh
//! CARGO_PROFILE_NODE_STRIP=false cargo build --locked --profile node --target x86_64-unknown-linux-musl \
//!   -p kubelet-authenticator-aws -p kubelet-authenticator-insecure -p kubelet-authenticator-tpm
//! target/debug/bench --linker-script target/x86_64-unknown-linux-musl/node >src/cached-path.ld
//! ```

use std::env;

fn main() {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../src/cached-path.ld");
    println!("cargo::rerun-if-changed={script}");
    if env::var_os("CARGO_CFG_TARGET_ENV").is_some_and(|env| env == "musl") {
        println!("cargo::rustc-link-arg-bins=-Wl,-T,{script}");
    }
}
