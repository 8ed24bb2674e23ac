//! Runs Debian's cloud-init outside a machine.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::binaries::build;
use crate::process::Scratch;

/// A script that reads the metadata service with cloud-init's EC2 datasource, and renders the template as an instance's
/// user data.
///
/// The script replaces only the function that searches for EC2 in the firmware tables of this machine.
const RENDER: &str = r#"
import os, sys
from cloudinit import distros, helpers
from cloudinit.handlers.jinja_template import render_jinja_payload_from_file
from cloudinit.sources import DataSourceEc2 as ec2
url, directory = sys.argv[1:]
ec2.identify_platform = lambda: "aws"
paths = helpers.Paths({"cloud_dir": directory, "run_dir": directory})
distro = distros.fetch("debian")("debian", {}, paths)
settings = {"datasource": {"Ec2": {"metadata_urls": [url], "max_wait": 30, "timeout": 10}}}
source = ec2.DataSourceEc2(settings, distro, paths)
assert source.get_data(), "no data from " + url
data = os.path.join(directory, "instance-data-sensitive.json")
template = os.path.join(directory, "template")
print(render_jinja_payload_from_file(open(template).read(), template, data))
"#;

/// The directory tree of cloud-init and its libraries, for use as a layer of a machine's root directory.
#[track_caller]
pub(crate) fn tree() -> PathBuf {
    build(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../cloud-init/build"))
}

/// The output of cloud-init for this template in the user data of the instance that has this metadata service.
///
/// # Panics
///
/// Panics if cloud-init is neither installed nor available for download, or if it fails.
#[track_caller]
pub fn render_on_ec2(metadata_service: &str, template: &str) -> String {
    let scratch = Scratch::new("cloud-init");
    scratch.write("template", format!("## template: jinja\n{template}"));
    // The system's Python is used, because the packages are for this version.
    let output = Command::new("/usr/bin/python3")
        .args(["-c", RENDER, metadata_service])
        .arg(scratch.path())
        .env("PYTHONPATH", tree().join("usr/lib/python3/dist-packages"))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .output()
        .expect("Python is installed");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    String::from_utf8(output.stdout).expect("cloud-init writes UTF-8")
}
