//! Tests that the generated code matches `signer.proto`.

use std::fs;
use std::path::Path;

/// With `UPDATE=1`, the test writes the code.
#[test]
fn the_generated_code_is_current() {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let files = protox::compile(["signer.proto"], [package]).unwrap();
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    tonic_prost_build::configure()
        .out_dir(folder)
        .server_mod_attribute(".", "#[cfg(feature = \"server\")]")
        .compile_fds(files)
        .unwrap();
    let generated = fs::read_to_string(folder.join("nodeattestation.v1alpha1.rs")).unwrap();
    let path = package.join("src/generated.rs");
    if std::env::var_os("UPDATE").is_some() {
        fs::write(&path, &generated).unwrap();
    }

    assert!(
        fs::read_to_string(path).unwrap() == generated,
        "run it with UPDATE=1"
    );
}
