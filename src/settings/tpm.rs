//! What is set for machines with a TPM.

use std::fmt;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use kubelet_attestation::evidence::tpm::MAX_REGISTER;
use kubelet_attestation::names::NodeName;
use serde::{Deserialize, Deserializer, de};

use super::error::ValueError;
use super::layer::{AbsolutePath, FromText, text};

/// The TPM by way of the kernel's resource manager, which keeps its users apart and cleans up after
/// them.
const DEVICE: &str = "/dev/tpmrm0";

/// What firmware measures before it hands over to a boot loader ("PC Client Platform Firmware
/// Profile", PCR usage).
const REGISTERS: [u8; 8] = [0, 1, 2, 3, 4, 5, 6, 7];

/// What is set for machines with a TPM; every other provider passes it over.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct TpmSettings {
    /// The TPM.
    pub device: PathBuf,
    /// The TPM where it is no device; then [`device`](Self::device) is passed over.
    pub tcti: Option<Tcti>,
    /// Which endorsement key says which TPM this is.
    pub endorsement_key: EndorsementKeyChoice,
    /// The registers that are quoted: ascending, at least one.
    pub registers: Vec<u8>,
    /// The program that speaks to the TPM, where it is not in its usual places.
    pub device_program: Option<PathBuf>,
}

/// Which endorsement key, of the templates of the TCG EK Credential Profile.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum EndorsementKeyChoice {
    /// The strongest that the TPM has prepared.
    #[default]
    Auto,
    /// RSA with 2048 bits (L-1).
    Rsa2048,
    /// ECC on NIST P-256 (L-2).
    EccP256,
    /// ECC on NIST P-384 (H-3).
    EccP384,
}

impl EndorsementKeyChoice {
    /// Its name, as in the settings.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Rsa2048 => "rsa-2048",
            Self::EccP256 => "ecc-p256",
            Self::EccP384 => "ecc-p384",
        }
    }

    /// The choice of this name.
    pub fn named(text: &str) -> Option<Self> {
        [Self::Auto, Self::Rsa2048, Self::EccP256, Self::EccP384]
            .into_iter()
            .find(|choice| choice.as_str() == text)
    }
}

impl FromText for EndorsementKeyChoice {
    fn read(text: &str) -> Result<Self, ValueError> {
        Self::named(text).ok_or(ValueError::NotOneOf {
            known: &["auto", "rsa-2048", "ecc-p256", "ecc-p384"],
        })
    }
}

/// Where a TPM is that is a process: swtpm, reached over TCP.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tcti {
    host: String,
    port: u16,
}

impl fmt::Display for Tcti {
    /// As libtss2 takes it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "swtpm:host={},port={}", self.host, self.port)
    }
}

impl FromText for Tcti {
    /// Takes `swtpm:host=<host>,port=<port>` alone: of what it does not know libtss2's reader says
    /// nothing, and goes on to a TPM at its default address.
    fn read(text: &str) -> Result<Self, ValueError> {
        let known = text
            .strip_prefix("swtpm:host=")
            .and_then(|rest| rest.split_once(",port="));
        let (host, port) = known.ok_or(ValueError::Tcti)?;
        let is_host = host.parse::<IpAddr>().is_ok() || NodeName::parse(host).is_ok();
        // The control channel has the port after it.
        match port.parse::<u16>() {
            Ok(port) if is_host && port > 0 && port < u16::MAX => Ok(Self {
                host: host.to_owned(),
                port,
            }),
            Ok(_) | Err(_) => Err(ValueError::Tcti),
        }
    }
}

/// Numbers of registers: ascending, each once, at least one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RegisterNumbers(Vec<u8>);

impl RegisterNumbers {
    fn check(mut numbers: Vec<u8>) -> Result<Self, ValueError> {
        let given = numbers.len();
        numbers.sort_unstable();
        numbers.dedup();
        // A quote over no register says nothing of the boot, and looks as if it did.
        let last = numbers.last().ok_or(ValueError::Registers)?;
        if *last > MAX_REGISTER || numbers.len() < given {
            return Err(ValueError::Registers);
        }
        Ok(Self(numbers))
    }
}

impl FromText for RegisterNumbers {
    fn read(text: &str) -> Result<Self, ValueError> {
        let numbers: Result<Vec<u8>, _> = text.split(',').map(|part| part.trim().parse()).collect();
        Self::check(numbers.map_err(|_| ValueError::Registers)?)
    }
}

fn numbers<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<RegisterNumbers>, D::Error> {
    let numbers = Option::<Vec<u8>>::deserialize(deserializer)?;
    numbers
        .map(|numbers| RegisterNumbers::check(numbers).map_err(de::Error::custom))
        .transpose()
}

/// What one source says of a TPM.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(super) struct TpmLayer {
    #[serde(deserialize_with = "text")]
    pub(super) device: Option<AbsolutePath>,
    #[serde(deserialize_with = "text")]
    pub(super) tcti: Option<Tcti>,
    #[serde(deserialize_with = "text")]
    pub(super) endorsement_key: Option<EndorsementKeyChoice>,
    #[serde(deserialize_with = "numbers")]
    pub(super) pcrs: Option<RegisterNumbers>,
    #[serde(deserialize_with = "text")]
    pub(super) device_program: Option<AbsolutePath>,
}

impl TpmLayer {
    /// This layer, and where it says nothing, what `lower` says.
    pub(super) fn over(self, lower: Self) -> Self {
        Self {
            device: self.device.or(lower.device),
            tcti: self.tcti.or(lower.tcti),
            endorsement_key: self.endorsement_key.or(lower.endorsement_key),
            pcrs: self.pcrs.or(lower.pcrs),
            device_program: self.device_program.or(lower.device_program),
        }
    }

    /// The settings, with the defaults where nothing was said.
    pub(super) fn complete(self) -> TpmSettings {
        TpmSettings {
            device: self.device.map_or_else(|| DEVICE.into(), |path| path.0),
            tcti: self.tcti,
            endorsement_key: self.endorsement_key.unwrap_or_default(),
            registers: self
                .pcrs
                .map_or_else(|| REGISTERS.to_vec(), |numbers| numbers.0),
            device_program: self.device_program.map(|path| path.0),
        }
    }
}

impl TpmSettings {
    /// What the digest of the settings covers of these.
    pub(super) fn digested(&self) -> [Option<Vec<u8>>; 5] {
        let path = |path: &Path| path.as_os_str().as_encoded_bytes().to_vec();
        [
            Some(path(&self.device)),
            self.tcti.as_ref().map(|tcti| tcti.to_string().into_bytes()),
            Some(self.endorsement_key.as_str().into()),
            Some(self.registers.clone()),
            self.device_program.as_deref().map(path),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tcti_is_an_swtpm_at_a_host_and_port() {
        for text in [
            "swtpm:host=127.0.0.1,port=2321",
            "swtpm:host=::1,port=1",
            "swtpm:host=localhost,port=65534",
        ] {
            assert_eq!(Tcti::read(text).unwrap().to_string(), text);
        }
        for text in [
            "swtpm",
            "swtpm:",
            "swtpm:path=/run/swtpm.sock",
            "swtpm:host=127.0.0.1,port=2321,path=/x",
            "swtpm:port=2321,host=127.0.0.1",
            "swtpm:host=,port=2321",
            "swtpm:host=127.0.0.1,port=0",
            "swtpm:host=127.0.0.1,port=65535",
            "device:/dev/tpm0",
            "tabrmd",
        ] {
            assert_eq!(Tcti::read(text), Err(ValueError::Tcti), "{text}");
        }
    }

    #[test]
    fn registers_are_numbers_that_a_pc_has() {
        let read = |text| RegisterNumbers::read(text).map(|numbers| numbers.0);

        assert_eq!(read("7"), Ok(vec![7]));
        assert_eq!(read("7, 0,23"), Ok(vec![0, 7, 23]));
        for text in ["24", "0,0", "-1", "0,", "0-7", "x"] {
            assert_eq!(read(text), Err(ValueError::Registers), "{text}");
        }
        assert_eq!(
            RegisterNumbers::check(Vec::new()),
            Err(ValueError::Registers)
        );
    }

    #[test]
    fn another_endorsement_key_names_those_there_are() {
        let error = EndorsementKeyChoice::read("rsa-3072").unwrap_err();

        assert_eq!(
            error.to_string(),
            "one of auto, rsa-2048, ecc-p256, ecc-p384 is needed"
        );
    }
}
