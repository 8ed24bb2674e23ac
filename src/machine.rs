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

const PRODUCT_UUID: &str = "product_uuid";
const ASSET_TAG: &str = "board_asset_tag";
const SERIAL: &str = "serial-number";

/// The serial number, in firmware with a device tree (the Devicetree Specification, section 3.2).
const SERIAL_NUMBER: &str = "sys/firmware/devicetree/base/serial-number";

/// The ID that the operating system assigns to the machine (machine-id(5)). It is on the disk, so a copy of the disk
/// has the same ID until an administrator resets the ID.
const MACHINE_ID: &str = "etc/machine-id";

/// The content of [`MACHINE_ID`] before the first boot completes.
const UNINITIALIZED: &str = "uninitialized";

/// The maximum length of a value, in bytes, which is longer than the content of any of these one-line files.
const MAX_LINE: usize = 512;

/// UUIDs that many machines have, because the vendor did not set one. UUIDs in which all bytes are equal are also
/// placeholders.
const PLACEHOLDER_UUIDS: [&str; 6] = [
    "03000200-0400-0500-0006-000700080009",
    "03020100-0504-0706-0809-0a0b0c0d0e0f",
    "10000000-0000-8000-0040-000000000000",
    "12345678-1234-5678-90ab-cddeefaabbcc",
    "12345678-1234-1234-1234-123456789abc",
    "deadbeef-dead-beef-dead-beefdeadbeef",
];

/// Texts that vendors use instead of an asset tag or a serial number.
const PLACEHOLDER_TEXTS: [&str; 25] = [
    "0123456789",
    "123456789",
    "1234567890",
    "Asset Tag",
    "Asset-1234567890",
    "Base Board Asset Tag",
    "Base Board Asset Tag#",
    "Default string",
    "Empty",
    "N/A",
    "NA",
    "No Asset Information",
    "No Asset Tag",
    "None",
    "Not Applicable",
    "Not Available",
    "Not Present",
    "Not Provided",
    "Not Settable",
    "Not Specified",
    "NULL",
    "System Serial Number",
    "To be filled by O.E.M.",
    "Type2 - Board Asset Tag",
    "Unknown",
];

/// A machine, described by the files under its root.
#[derive(Debug, Clone)]
pub struct Machine {
    root: PathBuf,
}

/// Digests of the values that identify a machine. The values themselves can be confidential.
///
/// If a disk is cloned or copied into an image, the values of the new machine differ. A vendor's placeholder does not
/// count as a value.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct MachineDigest {
    #[serde(skip_serializing_if = "Option::is_none")]
    product_uuid: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    board_asset_tag: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    serial_number: Option<String>,
    /// The digest of the machine ID. Set only if the firmware does not provide the other values.
    #[serde(skip_serializing_if = "Option::is_none")]
    machine_id: Option<String>,
}

impl Default for Machine {
    fn default() -> Self {
        Self { root: "/".into() }
    }
}

impl Machine {
    /// Returns the machine that the files under `root` describe.
    #[cfg(any(test, feature = "testing"))]
    pub fn rooted(root: &Path) -> Self {
        let root = root.to_owned();
        Self { root }
    }

    /// The file with this absolute path.
    pub(crate) fn path(&self, absolute: &str) -> PathBuf {
        self.root.join(absolute.trim_start_matches('/'))
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

    /// The values that identify this machine.
    pub(crate) fn identity(&self) -> MachineIdentity {
        let dmi = self.root.join(DMI);
        let digest = |path: &Path, name: &str| {
            let value = line(path).filter(|value| !is_placeholder(value));
            value.map(|value| hex_digest(name, &value))
        };
        let uuid = line(&dmi.join(PRODUCT_UUID)).filter(|uuid| !is_placeholder(uuid));
        let mut digest = MachineDigest {
            product_uuid: uuid.as_deref().map(digest_of_uuid),
            board_asset_tag: digest(&dmi.join(ASSET_TAG), ASSET_TAG),
            serial_number: digest(&self.root.join(SERIAL_NUMBER), SERIAL),
            machine_id: None,
        };
        if digest.is_empty() {
            digest.machine_id = line(&self.root.join(MACHINE_ID))
                .filter(|value| value != UNINITIALIZED)
                .map(|value| hex_digest("machine-id", &value));
        }
        MachineIdentity { digest, uuid }
    }

    /// Digests of the values that identify this machine.
    pub fn digest(&self) -> MachineDigest {
        self.identity().digest
    }
}

/// The values that identify a running machine.
#[derive(derive_more::Debug, Clone)]
pub(crate) struct MachineIdentity {
    digest: MachineDigest,
    #[debug(skip)]
    uuid: Option<String>,
}

impl MachineIdentity {
    /// Digests of the values.
    pub(crate) fn digest(&self) -> &MachineDigest {
        &self.digest
    }

    /// Whether this machine is certainly not `stored`. If both have a product UUID, only the UUID is compared, because
    /// an operator can set the asset tag, and a repair can replace a board. Otherwise, one different value that both
    /// machines have is sufficient.
    pub(crate) fn differs_from(&self, stored: &MachineDigest) -> bool {
        if let Some(is_same) = self.has_uuid_of(stored) {
            return !is_same;
        }
        let differ = |name: &str, own: &Option<String>, stored: &Option<String>| match (own, stored)
        {
            (Some(own), Some(stored)) => own != stored && !is_digest_of_placeholder(name, stored),
            _ => false,
        };
        let own = &self.digest;
        differ(ASSET_TAG, &own.board_asset_tag, &stored.board_asset_tag)
            || differ(SERIAL, &own.serial_number, &stored.serial_number)
            || differ("machine-id", &own.machine_id, &stored.machine_id)
    }

    /// Whether this machine is certainly `stored`: the product UUIDs are the same, or all other values are the same.
    pub(crate) fn is_of(&self, stored: &MachineDigest) -> bool {
        let is_same = self.has_uuid_of(stored);
        is_same.unwrap_or_else(|| self.digest == *stored)
    }

    /// Whether the product UUIDs are the same; `None` if one is unknown.
    ///
    /// Kernels before 4.13 write UUIDs in upper case. The byte order of the first three fields depends on the version
    /// of SMBIOS, which an upgrade of a virtual machine's hardware can change.
    fn has_uuid_of(&self, stored: &MachineDigest) -> Option<bool> {
        let (uuid, stored) = (self.uuid.as_ref()?, stored.product_uuid.as_ref()?);
        let spellings = [Some(uuid.clone()), swapped(uuid)].into_iter().flatten();
        // Earlier releases stored the UUID unchanged, in upper or lower case.
        let mut cases = spellings.chain([uuid.clone()]).flat_map(|uuid| {
            let (lower, upper) = (uuid.to_ascii_lowercase(), uuid.to_ascii_uppercase());
            [uuid, lower, upper]
        });
        if cases.any(|uuid| hex_digest(PRODUCT_UUID, &uuid) == *stored) {
            return Some(true);
        }
        (!is_digest_of_placeholder(PRODUCT_UUID, stored)).then_some(false)
    }
}

impl MachineDigest {
    /// Whether the machine has no value that identifies it.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

fn digest_of_uuid(uuid: &str) -> String {
    hex_digest(PRODUCT_UUID, &uuid.to_ascii_lowercase())
}

/// The UUID with the bytes of its first three fields in reverse order. `None` if the text is not a UUID.
fn swapped(uuid: &str) -> Option<String> {
    let fields: Vec<&str> = uuid.split('-').collect();
    let is_uuid = fields.iter().map(|field| field.len()).eq([8, 4, 4, 4, 12])
        && uuid
            .bytes()
            .all(|byte| byte.is_ascii_hexdigit() || byte == b'-');
    let swap = |(place, field): (usize, &&str)| {
        let bytes = field.as_bytes().chunks(2).map(String::from_utf8_lossy);
        if place < 3 {
            bytes.rev().collect::<String>()
        } else {
            (*field).to_owned()
        }
    };
    is_uuid.then(|| {
        fields
            .iter()
            .enumerate()
            .map(swap)
            .collect::<Vec<_>>()
            .join("-")
    })
}

/// Whether vendors assign this value to many machines.
fn is_placeholder(value: &str) -> bool {
    let letters: Vec<u8> = value
        .bytes()
        .filter(|byte| !b"-_. ".contains(byte))
        .collect();
    let is_one_letter = letters.iter().all(|byte| Some(byte) == letters.first());
    if is_one_letter && (letters.len() > 3 || letters.first().is_none_or(|it| *it == b'0')) {
        return true;
    }
    let other_order = swapped(value);
    placeholders().any(|known| {
        value.eq_ignore_ascii_case(&known)
            || other_order
                .as_ref()
                .is_some_and(|it| it.eq_ignore_ascii_case(&known))
    })
}

/// Whether an earlier release stored a vendor's placeholder as a value.
fn is_digest_of_placeholder(name: &str, digest: &str) -> bool {
    let both_orders = placeholders().flat_map(|known| [swapped(&known), Some(known)]);
    let mut spellings = both_orders.flatten().flat_map(|known| {
        let (lower, upper) = (known.to_ascii_lowercase(), known.to_ascii_uppercase());
        [known, lower, upper]
    });
    spellings.any(|known| hex_digest(name, &known) == digest)
}

fn placeholders() -> impl Iterator<Item = String> {
    let of_one_byte = (0..=u8::MAX).map(|byte| {
        let byte = HEXLOWER.encode(&[byte]);
        [4, 2, 2, 2, 6].map(|len| byte.repeat(len)).join("-")
    });
    let listed = PLACEHOLDER_UUIDS.iter().chain(&PLACEHOLDER_TEXTS);
    listed.map(|known| (*known).to_owned()).chain(of_one_byte)
}

/// Returns the first line of a short file, with a single read, because this function runs at every start.
fn line(path: &Path) -> Option<String> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, Mode::empty()).ok()?;
    let mut buffer = [0; MAX_LINE];
    let length = rustix::io::read(&file, &mut buffer).ok()?;
    // Device tree values end with a zero byte.
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

    const UUID: &str = "4c4c4544-0042-3510-8052-b3c04f4b4e32";
    const SWAPPED: &str = "44454c4c-4200-1035-8052-b3c04f4b4e32";
    const OTHER: &str = "4c4c4544-0042-3510-8052-b3c04f4b4e33";

    /// The digest in the form that earlier releases stored. These releases did not recognize placeholders and different
    /// spellings.
    fn stored_before(uuid: Option<&str>, tag: Option<&str>) -> MachineDigest {
        MachineDigest {
            product_uuid: uuid.map(|uuid| hex_digest(PRODUCT_UUID, uuid)),
            board_asset_tag: tag.map(|tag| hex_digest(ASSET_TAG, tag)),
            ..MachineDigest::default()
        }
    }

    #[test]
    fn a_machine_with_the_same_firmware_uuid_is_recognized() {
        let root = tempfile::tempdir().unwrap();
        let upper = UUID.to_ascii_uppercase();
        for (stored, now, is_same) in [
            (
                (Some(UUID), Some("tag-1")),
                (Some(UUID), Some("tag-2")),
                true,
            ),
            ((Some(UUID), Some("tag-1")), (Some(UUID), None), true),
            ((Some(UUID), None), (Some(upper.as_str()), None), true),
            ((Some(upper.as_str()), None), (Some(UUID), None), true),
            ((Some(UUID), None), (Some(SWAPPED), None), true),
            ((Some(upper.as_str()), None), (Some(SWAPPED), None), true),
            (
                (Some(UUID), Some("tag-1")),
                (Some(OTHER), Some("tag-1")),
                false,
            ),
            // The asset tag, which is the instance ID on EC2, is used only if a UUID is missing.
            ((None, Some("i-1")), (Some(UUID), Some("i-2")), false),
            ((Some(UUID), Some("i-1")), (None, Some("i-2")), false),
            ((Some(UUID), Some("i-1")), (None, Some("i-1")), true),
            ((Some(UUID), Some("i-1")), (None, None), true),
            ((Some(UUID), None), (Some(" \n"), None), true),
        ] {
            let now_in = |uuid, tag| {
                machine(root.path(), uuid, tag);
                Machine::rooted(root.path()).identity()
            };
            let (before, after) = (now_in(stored.0, stored.1), now_in(now.0, now.1));
            let knows_uuid = stored.0.is_some() && now.0.is_some_and(|uuid| uuid != " \n");
            for stored in [before.digest().clone(), stored_before(stored.0, stored.1)] {
                assert_eq!(!after.differs_from(&stored), is_same, "{stored:?} {now:?}");
                let is_certain = knows_uuid && is_same;
                assert_eq!(after.is_of(&stored), is_certain, "{stored:?} {now:?}");
            }
        }
    }

    #[test]
    fn a_placeholder_from_a_vendor_is_ignored() {
        let root = tempfile::tempdir().unwrap();
        for (uuid, tag) in [
            ("00000000-0000-0000-0000-000000000000", "Default string"),
            (
                "FFFFFFFF-FFFF-FFFF-FFFF-FFFFFFFFFFFF",
                "To Be Filled By O.E.M.",
            ),
            ("fefefefe-fefe-fefe-fefe-fefefefefefe", "Not Specified"),
            ("03000200-0400-0500-0006-000700080009", "No Asset Tag"),
            ("00020003-0004-0005-0006-000700080009", "0"),
            ("Not Settable", "................"),
            ("Default string", "xxxxxxxx"),
        ] {
            let digest = machine(root.path(), Some(uuid), Some(tag));
            assert_eq!(digest.product_uuid, None, "{uuid}");
            assert_eq!(digest.board_asset_tag, None, "{tag}");
        }
        for tag in ["i-0123456789abcdef0", "7", "77", "RACK-7-U12", "none-1"] {
            let digest = machine(root.path(), Some(UUID), Some(tag));
            assert!(digest.product_uuid.is_some() && digest.board_asset_tag.is_some());
        }
    }

    #[test]
    fn a_placeholder_stored_by_an_earlier_release_is_ignored() {
        let root = tempfile::tempdir().unwrap();
        machine(root.path(), Some(UUID), Some("RACK-7-U12"));
        let now = Machine::rooted(root.path()).identity();
        for (uuid, tag) in [
            ("03000200-0400-0500-0006-000700080009", "Default string"),
            (
                "FFFFFFFF-FFFF-FFFF-FFFF-FFFFFFFFFFFF",
                "To be filled by O.E.M.",
            ),
        ] {
            let stored = stored_before(Some(uuid), Some(tag));
            assert!(!now.differs_from(&stored) && !now.is_of(&stored), "{uuid}");
        }
        let stored = stored_before(Some("03000200-0400-0500-0006-000700080009"), Some("RACK-8"));
        assert!(now.differs_from(&stored));
    }

    #[test]
    fn a_machine_with_placeholder_firmware_ids_uses_its_machine_id() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("etc")).unwrap();
        fs::write(
            root.path().join(MACHINE_ID),
            "0123456789abcdef0123456789abcdef\n",
        )
        .unwrap();

        let digest = machine(
            root.path(),
            Some("03000200-0400-0500-0006-000700080009"),
            Some("Default string"),
        );

        assert!(digest.machine_id.is_some());
        assert_eq!(machine(root.path(), Some(UUID), None).machine_id, None);
    }

    #[test]
    fn machine_id_digests_do_not_reveal_the_values() {
        let root = tempfile::tempdir().unwrap();
        let digest = machine(root.path(), Some("4c4c4544"), None);

        assert!(!format!("{digest:?}").contains("4c4c4544"));
    }

    #[test]
    fn the_boot_id_is_read_from_the_kernel_if_available() {
        let root = tempfile::tempdir().unwrap();

        assert_eq!(Machine::rooted(root.path()).boot_id(), None);
        assert!(Machine::default().boot_id().is_some());
    }
}
