//! The identity of this machine and of its boot.

use std::path::{Path, PathBuf};

use data_encoding::HEXLOWER;
use rustix::fs::{Mode, OFlags};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

/// The ID of the boot: it changes with every boot (random(4)).
const BOOT_ID: &str = "proc/sys/kernel/random/boot_id";

/// The firmware's data about the machine.
const DMI: &str = "sys/class/dmi/id";

/// The serial number, in firmware with a device tree (the Devicetree Specification, section 3.2).
const SERIAL_NUMBER: &str = "sys/firmware/devicetree/base/serial-number";

/// The operating system's ID of the machine (machine-id(5)). It is on the disk, so a copy of the
/// disk has the same ID until it is set up anew.
const MACHINE_ID: &str = "etc/machine-id";

/// The content of [`MACHINE_ID`] before the first boot completes.
const UNINITIALIZED: &str = "uninitialized";

/// Longer than any of these one-line files.
const MAX_LINE: usize = 512;

/// A machine, by the files under its root.
#[derive(Debug, Clone)]
pub struct Machine {
    root: PathBuf,
}

/// Digests of the values that identify a machine. The values themselves may be confidential.
///
/// If a disk is cloned or baked into an image, its next machine has other values.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct MachineDigest {
    #[serde(skip_serializing_if = "Option::is_none")]
    product_uuid: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    board_asset_tag: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    serial_number: Option<String>,
    /// Set only if the firmware provides none of the others.
    #[serde(skip_serializing_if = "Option::is_none")]
    machine_id: Option<String>,
}

impl Default for Machine {
    fn default() -> Self {
        Self { root: "/".into() }
    }
}

impl Machine {
    /// The machine that the files under `root` describe.
    #[cfg(any(test, feature = "testing"))]
    pub fn rooted(root: &Path) -> Self {
        let root = root.to_owned();
        Self { root }
    }

    /// The ID of this boot, if the kernel provides it.
    pub fn boot_id(&self) -> Option<String> {
        line(&self.root.join(BOOT_ID))
    }

    /// The vendor, from the firmware: `Amazon EC2` on every Nitro instance (the EC2 user guide,
    /// "Detect whether a host is an EC2 instance").
    pub fn vendor(&self) -> Option<String> {
        line(&self.root.join(DMI).join("sys_vendor"))
    }

    /// Digests of the values that identify this machine.
    pub fn digest(&self) -> MachineDigest {
        let digest = |path: &Path, name: &str| line(path).map(|value| hex_digest(name, &value));
        let dmi = self.root.join(DMI);
        let of_firmware = |name: &str| digest(&dmi.join(name), name);
        let mut known = MachineDigest {
            product_uuid: of_firmware("product_uuid"),
            board_asset_tag: of_firmware("board_asset_tag"),
            serial_number: digest(&self.root.join(SERIAL_NUMBER), "serial-number"),
            machine_id: None,
        };
        if known.is_empty() {
            known.machine_id = line(&self.root.join(MACHINE_ID))
                .filter(|value| value != UNINITIALIZED)
                .map(|value| hex_digest("machine-id", &value));
        }
        known
    }
}

impl MachineDigest {
    /// Whether there is no value that identifies this machine.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Whether this is certainly another machine than `other`: a value that both have differs.
    pub fn differs_from(&self, other: &Self) -> bool {
        let differ = |a: &Option<String>, b: &Option<String>| a.is_some() && b.is_some() && a != b;
        differ(&self.product_uuid, &other.product_uuid)
            || differ(&self.board_asset_tag, &other.board_asset_tag)
            || differ(&self.serial_number, &other.serial_number)
            || differ(&self.machine_id, &other.machine_id)
    }
}

/// One read of one short line, because every start does this.
fn line(path: &Path) -> Option<String> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, Mode::empty()).ok()?;
    let mut buffer = [0; MAX_LINE];
    let length = rustix::io::read(&file, &mut buffer).ok()?;
    // The values of a device tree end with a zero byte.
    let line = str::from_utf8(buffer.get(..length)?).ok()?;
    let line = line.trim_end_matches('\0').trim();
    (!line.is_empty()).then(|| line.to_owned())
}

fn hex_digest(name: &str, value: &str) -> String {
    let digest = Sha256::new()
        .chain_update(name)
        .chain_update([0])
        .chain_update(value)
        .finalize();
    HEXLOWER.encode(&digest)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn machine(root: &Path, uuid: Option<&str>, tag: Option<&str>) -> MachineDigest {
        let machine = Machine::rooted(root);
        let dmi = root.join(DMI);
        fs::create_dir_all(&dmi).unwrap();
        for (name, value) in [("product_uuid", uuid), ("board_asset_tag", tag)] {
            let path = dmi.join(name);
            drop(fs::remove_file(&path));
            if let Some(value) = value {
                fs::write(path, value).unwrap();
            }
        }
        machine.digest()
    }

    #[test]
    fn a_machine_differs_when_something_that_both_know_does() {
        let root = tempfile::tempdir().unwrap();
        let this = machine(root.path(), Some("uuid-1\n"), Some("i-1\n"));

        for (uuid, tag, differs) in [
            (Some("uuid-1"), Some("i-1"), false),
            (Some("uuid-2"), Some("i-1"), true),
            (Some("uuid-1"), Some("i-2"), true),
            (None, Some("i-1"), false),
            (None, None, false),
            (Some(" \n"), None, false),
        ] {
            let other = machine(root.path(), uuid, tag);
            assert_eq!(this.differs_from(&other), differs, "{uuid:?} {tag:?}");
        }
    }

    #[test]
    fn digests_do_not_show_the_values() {
        let root = tempfile::tempdir().unwrap();
        let digest = machine(root.path(), Some("4c4c4544"), None);

        assert!(!format!("{digest:?}").contains("4c4c4544"));
    }

    #[test]
    fn a_boot_has_an_id_where_the_kernel_tells_it() {
        let root = tempfile::tempdir().unwrap();

        assert_eq!(Machine::rooted(root.path()).boot_id(), None);
        assert!(Machine::default().boot_id().is_some());
    }
}
