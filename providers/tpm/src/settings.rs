//! The settings of the TPM provider.

use std::net::IpAddr;
use std::path::PathBuf;

use kubelet_attestation::evidence::tpm::MAX_REGISTER;
use kubelet_attestation::names::NodeName;
use kubelet_authenticator::failure::Invalid;
use kubelet_authenticator::imds::METADATA_ENDPOINT;
use kubelet_authenticator::settings;
use kubelet_authenticator::settings::{AbsolutePath, Form, Settings, Value, one_of};

use crate::protocol::EndorsementKey;

// The metadata endpoint is a setting, because a machine with a TPM can be an EC2 instance.
settings! { pub(crate) TABLE [.., METADATA_ENDPOINT] {
    DEVICE: AbsolutePath = "tpm.device", "tpm-device", "FILE", "Device file of the TPM",
        default DEFAULT_DEVICE;
    TCTI: Tcti = "tpm.tcti", "tpm-tcti", "ADDRESS",
        "TCTI of the TPM, instead of --tpm-device: swtpm:host=HOST,port=PORT", otherwise "the device";
    ENDORSEMENT_KEY: EndorsementKeyChoice = "tpm.endorsementKey", "tpm-endorsement-key", "KEY",
        "Endorsement key that identifies the TPM: auto, rsa-2048, ecc-p256 or ecc-p384",
        default "auto";
    PCRS: PcrSelection =
        "tpm.pcrs", "tpm-pcrs", "NUMBERS", "PCRs in the quote, such as 0,2,4,7",
        default "0,1,2,3,4,5,6,7,8,9,11,12,13,14";
} }

const TCTI_FORM: &str = "swtpm:host=<host>,port=<port>";
const PCRS_FORM: &str = "a list of PCRs from 0 to 23, without duplicates";

/// The device of the kernel's TPM resource manager, which isolates the users of the TPM and flushes their objects and
/// sessions.
const DEFAULT_DEVICE: &str = "/dev/tpmrm0";

/// The PCRs that the firmware extends ("PC Client Platform Firmware Profile", PCR usage), and the PCRs that boot
/// loaders extend with the kernel, the initrd, kernel arguments and extensions. PCR 10 is not included: Linux IMA
/// extends it while the machine runs.
const DEFAULT_PCRS: [u8; 14] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 14];

/// The effective settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TpmSettings {
    /// The device file of the TPM.
    pub(crate) device: PathBuf,
    /// The address of a TPM that is not a device. If it is set, [`device`](Self::device) is ignored.
    pub(crate) tcti: Option<Tcti>,
    /// The endorsement key from which the provider ID is derived. With `None`, the TPM helper chooses a key.
    pub(crate) endorsement_key: Option<EndorsementKey>,
    /// The PCRs to quote, at least one, in ascending order.
    pub(crate) pcrs: Vec<u8>,
}

impl TpmSettings {
    /// The settings of the provider. If the settings do not select an endorsement key, the result contains the
    /// `enrolled` key.
    pub(crate) fn of(settings: &Settings, enrolled: Option<&str>) -> Self {
        let path = |setting| settings.value(setting).map(|AbsolutePath(path)| path);
        let choice = settings.value(&ENDORSEMENT_KEY);
        Self {
            device: path(&DEVICE).unwrap_or_else(|| DEFAULT_DEVICE.into()),
            tcti: settings.value(&TCTI),
            endorsement_key: choice
                .and_then(|EndorsementKeyChoice(key)| key)
                .or_else(|| one_of(enrolled?, &ENDORSEMENT_KEYS).ok()?),
            pcrs: settings
                .value(&PCRS)
                .map_or_else(|| DEFAULT_PCRS.to_vec(), |PcrSelection(pcrs)| pcrs),
        }
    }
}

/// The endorsement keys by name. `None` means the strongest key that the TPM provides.
const ENDORSEMENT_KEYS: [(&str, Option<EndorsementKey>); 4] = [
    ("auto", None),
    ("rsa-2048", Some(EndorsementKey::Rsa2048)),
    ("ecc-p256", Some(EndorsementKey::EccP256)),
    ("ecc-p384", Some(EndorsementKey::EccP384)),
];

/// The name of this endorsement key.
pub(crate) fn endorsement_key_name(key: EndorsementKey) -> Option<&'static str> {
    let mut keys = ENDORSEMENT_KEYS.into_iter();
    keys.find(|(_, known)| *known == Some(key))
        .map(|(name, _)| name)
}

/// The endorsement key from the settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct EndorsementKeyChoice(Option<EndorsementKey>);

impl Value for EndorsementKeyChoice {
    fn read(text: &str) -> Result<Self, Invalid> {
        one_of(text, &ENDORSEMENT_KEYS).map(Self)
    }
}

/// The TCP address of a software TPM (swtpm).
#[derive(derive_more::Display, Debug, Clone, PartialEq, Eq)]
#[display("swtpm:host={host},port={port}")]
pub(crate) struct Tcti {
    host: String,
    port: u16,
}

impl Value for Tcti {
    /// Accepts only `swtpm:host=<host>,port=<port>`: the parser of libtss2 ignores unknown parts, and then connects to
    /// its default address.
    fn read(text: &str) -> Result<Self, Invalid> {
        let known = text
            .strip_prefix("swtpm:host=")
            .and_then(|rest| rest.split_once(",port="));
        let (host, port) = known.ok_or_else(|| Invalid::needed(TCTI_FORM))?;
        let is_host = host.parse::<IpAddr>().is_ok() || NodeName::parse(host).is_ok();
        // The control channel uses the next port.
        match port.parse::<u16>() {
            Ok(port) if is_host && port > 0 && port < u16::MAX => Ok(Self {
                host: host.to_owned(),
                port,
            }),
            Ok(_) | Err(_) => Err(Invalid::needed(TCTI_FORM)),
        }
    }
}

/// At least one PCR number. The numbers are in ascending order, without duplicates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PcrSelection(Vec<u8>);

impl Value for PcrSelection {
    const FORM: Form = Form::Numbers;

    fn read(text: &str) -> Result<Self, Invalid> {
        let numbers: Result<Vec<u8>, _> = text.split(',').map(|part| part.trim().parse()).collect();
        let mut numbers = numbers.map_err(|_| Invalid::needed(PCRS_FORM))?;
        let given = numbers.len();
        numbers.sort_unstable();
        numbers.dedup();
        if numbers.last().is_none_or(|last| *last > MAX_REGISTER) || numbers.len() < given {
            return Err(Invalid::needed(PCRS_FORM));
        }
        Ok(Self(numbers))
    }
}

#[cfg(test)]
mod tests {
    use kubelet_attestation::names::Provider;
    use kubelet_authenticator::settings::{Entry, ProviderSchema, Sources};

    use super::*;

    fn settings(given: &[(Entry, &str)], enrolled: Option<&str>) -> Result<TpmSettings, String> {
        let schema = ProviderSchema {
            provider: Provider::TPM,
            settings: TABLE,
            expiration_seconds: 3600,
        };
        let given = given.iter().map(|&(entry, text)| (entry, text.into()));
        let sources = Sources {
            flags: given.collect(),
            ..Sources::default()
        };
        Settings::load(sources, &schema)
            .map(|settings| TpmSettings::of(&settings, enrolled))
            .map_err(|error| error.to_string())
    }

    #[test]
    fn each_tpm_setting_has_the_documented_default() {
        let defaults = TpmSettings {
            device: "/dev/tpmrm0".into(),
            tcti: None,
            endorsement_key: None,
            pcrs: (0..=9).chain(11..=14).collect(),
        };
        assert_eq!(settings(&[], None), Ok(defaults));
    }

    #[test]
    fn every_tpm_setting_can_be_set() {
        let given = [
            (DEVICE.entry(), "/dev/tpmrm1"),
            (TCTI.entry(), "swtpm:host=127.0.0.1,port=2321"),
            (ENDORSEMENT_KEY.entry(), "ecc-p384"),
            (PCRS.entry(), "11,0"),
        ];
        assert_eq!(
            settings(&given, None),
            Ok(TpmSettings {
                device: "/dev/tpmrm1".into(),
                tcti: Some(Tcti {
                    host: "127.0.0.1".to_owned(),
                    port: 2321
                }),
                endorsement_key: Some(EndorsementKey::EccP384),
                pcrs: vec![0, 11],
            })
        );
    }

    #[test]
    fn the_quoted_registers_in_earlier_settings_are_unchanged() {
        let earlier = [(PCRS.entry(), "0,1,2,3,4,5,6,7")];

        assert_eq!(
            settings(&earlier, None).unwrap().pcrs,
            [0, 1, 2, 3, 4, 5, 6, 7]
        );
        let default = settings(&[], None).unwrap().pcrs;
        assert!(!default.contains(&10), "Linux IMA extends it");
    }

    #[test]
    fn the_tpm_table_defaults_match_the_effective_defaults() {
        let entries = [DEVICE.entry(), ENDORSEMENT_KEY.entry(), PCRS.entry()];
        let given = entries.map(|entry| (entry, entry.default_text().unwrap()));
        assert_eq!(settings(&given, None), settings(&[], None));
    }

    #[test]
    fn the_enrolled_endorsement_key_is_used_if_none_is_set() {
        let key = |given: &[_], enrolled| settings(given, enrolled).unwrap().endorsement_key;
        let auto = [(ENDORSEMENT_KEY.entry(), "auto")];
        let set = [(ENDORSEMENT_KEY.entry(), "rsa-2048")];

        assert_eq!(key(&[], Some("ecc-p256")), Some(EndorsementKey::EccP256));
        assert_eq!(key(&auto, Some("ecc-p256")), Some(EndorsementKey::EccP256));
        assert_eq!(key(&set, Some("ecc-p256")), Some(EndorsementKey::Rsa2048));
        assert_eq!(key(&auto, Some("damaged")), None);
    }

    #[test]
    fn the_error_for_an_invalid_tpm_setting_names_its_option() {
        for (entry, text, expected) in [
            (
                PCRS.entry(),
                "0,24",
                "--tpm-pcrs: must be a list of PCRs from 0 to 23",
            ),
            (
                TCTI.entry(),
                "swtpm:path=/s",
                "--tpm-tcti: must be swtpm:host=<host>,port=<port>",
            ),
            (
                DEVICE.entry(),
                "tpmrm0",
                "--tpm-device: must be an absolute path",
            ),
        ] {
            let error = settings(&[(entry, text)], None).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }

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
            assert_eq!(Tcti::read(text), Err(Invalid::needed(TCTI_FORM)), "{text}");
        }
    }

    #[test]
    fn invalid_or_duplicate_pcr_numbers_are_refused() {
        let read = |text| PcrSelection::read(text).map(|numbers| numbers.0);

        assert_eq!(read("7"), Ok(vec![7]));
        assert_eq!(read("7, 0,23"), Ok(vec![0, 7, 23]));
        for text in ["24", "0,0", "-1", "0,", "0-7", "x"] {
            assert_eq!(read(text), Err(Invalid::needed(PCRS_FORM)), "{text}");
        }
        assert_eq!(read(""), Err(Invalid::needed(PCRS_FORM)));
    }

    #[test]
    fn an_unknown_endorsement_key_error_lists_the_valid_choices() {
        let error = EndorsementKeyChoice::read("rsa-3072").unwrap_err();

        assert_eq!(
            error.to_string(),
            "must be one of auto, rsa-2048, ecc-p256, ecc-p384"
        );
    }
}
