//! `GetInstanceTpmEkPub`: the endorsement keys of an instance's NitroTPM.

use std::sync::Arc;

use base64::prelude::*;
use hyper::body::Bytes;

use super::calls::Call;
use crate::swtpm::Swtpm;
use crate::tpm_machine::{EndorsementKey, TpmMachine};

pub(super) const ACTION: &str = "GetInstanceTpmEkPub";

/// A public endorsement key in both formats.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublicKey {
    /// `SubjectPublicKeyInfo`: the format `der`.
    pub der: Vec<u8>,
    /// `TPMT_PUBLIC`: the format `tpmt`.
    pub tpmt: Vec<u8>,
}

/// The public endorsement keys that EC2 has for an instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NitroTpm {
    /// The key of the type `rsa-2048`.
    pub rsa: PublicKey,
    /// The key of the type `ecc-sec-p384`.
    pub p384: PublicKey,
}

impl NitroTpm {
    /// The keys of a TPM.
    #[track_caller]
    pub fn of(tpm: &Arc<Swtpm>) -> Self {
        let key = |endorsement| {
            let machine = TpmMachine::new(tpm.clone(), endorsement);
            PublicKey {
                der: machine.ek_spki(),
                tpmt: machine.ek_public(),
            }
        };
        Self {
            rsa: key(EndorsementKey::Rsa2048),
            p384: key(EndorsementKey::P384),
        }
    }
}

/// An error of EC2.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) status: u16,
    pub(super) code: &'static str,
}

const MISSING: Refusal = refusal("MissingParameter");
const INVALID: Refusal = refusal("InvalidParameterValue");
const NOT_FOUND: Refusal = refusal("InvalidInstanceID.NotFound");

/// EC2 does not document its error for an instance without a TPM. This is the general error code for an operation that
/// the configuration of an instance does not support.
const NO_TPM: Refusal = refusal("UnsupportedOperation");

const DRY_RUN: Refusal = Refusal {
    status: 412,
    code: "DryRunOperation",
};

const fn refusal(code: &'static str) -> Refusal {
    Refusal { status: 400, code }
}

/// The parameters of a well-formed call.
#[derive(Debug)]
pub(super) struct Wanted {
    pub(super) instance: String,
    key_type: String,
    key_format: String,
    dry_run: bool,
}

impl Wanted {
    pub(super) fn of(call: &Call) -> Result<Self, Refusal> {
        let find = |name: &str| {
            let mut parameters = call.parameters.iter();
            let (_, value) = parameters.find(|(found, _)| found == name)?;
            Some(value.clone())
        };
        let wanted = Self {
            instance: find("InstanceId").ok_or(MISSING)?,
            key_type: find("KeyType").ok_or(MISSING)?,
            key_format: find("KeyFormat").ok_or(MISSING)?,
            dry_run: find("DryRun").is_some_and(|value| value == "true"),
        };
        let known = ["rsa-2048", "ecc-sec-p384"].contains(&&*wanted.key_type)
            && ["der", "tpmt"].contains(&&*wanted.key_format);
        known.then_some(wanted).ok_or(INVALID)
    }

    /// The call to moto that checks whether the instance belongs to the caller.
    pub(super) fn describe(&self) -> Bytes {
        let mut form = form_urlencoded::Serializer::new(String::new());
        form.append_pair("Action", "DescribeInstances");
        form.append_pair("Version", "2016-11-15");
        form.append_pair("InstanceId.1", &self.instance);
        form.finish().into()
    }

    pub(super) fn answer(&self, tpm: Option<&NitroTpm>, hidden: bool) -> Result<String, Refusal> {
        if hidden {
            return Err(NOT_FOUND);
        }
        if self.dry_run {
            return Err(DRY_RUN);
        }
        let tpm = tpm.ok_or(NO_TPM)?;
        let key = match &*self.key_type {
            "rsa-2048" => &tpm.rsa,
            _ => &tpm.p384,
        };
        let value = match &*self.key_format {
            "der" => &key.der,
            _ => &key.tpmt,
        };
        Ok(format!(
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?><{ACTION}Response \
             xmlns=\"http://ec2.amazonaws.com/doc/2016-11-15/\"><requestId>0</requestId>\
             <instanceId>{}</instanceId><keyType>{}</keyType><keyFormat>{}</keyFormat>\
             <keyValue>{}</keyValue></{ACTION}Response>",
            self.instance,
            self.key_type,
            self.key_format,
            BASE64_STANDARD.encode(value)
        ))
    }
}
