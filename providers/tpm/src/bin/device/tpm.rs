//! The TPM: only this module uses `tss-esapi`.
//!
//! No call changes the TPM: no object or session remains loaded, even after an error. Each call creates the keys again,
//! from values that the TPM does not change by itself.

mod nv;

use std::collections::BTreeMap;
use std::str::FromStr as _;

use kubelet_attestation::binding::KeyBinding;
use kubelet_attestation::ensure;
use kubelet_attestation::evidence::tpm::{Bank, Registers};
use kubelet_attestation::names::Provider;
use sha2::{Digest as _, Sha256};
use tss_esapi::attributes::SessionAttributesBuilder;
use tss_esapi::constants::response_code::Tss2ResponseCode;
use tss_esapi::constants::{CapabilityType, SessionType};
use tss_esapi::handles::{
    AuthHandle, KeyHandle, ObjectHandle, PersistentTpmHandle, SessionHandle, TpmHandle,
};
use tss_esapi::interface_types::algorithm::HashingAlgorithm;
use tss_esapi::interface_types::ecc::EccCurve;
use tss_esapi::interface_types::resource_handles::Hierarchy;
use tss_esapi::interface_types::session_handles::{AuthSession, PolicySession};
use tss_esapi::structures::{
    Attest, AttestInfo, CapabilityData, Data, Digest, DigestList, EncryptedSecret, IdObject, Nonce,
    PcrSelection, PcrSelectionList, PcrSlot, Public, Signature, SignatureScheme,
    SymmetricDefinition,
};
use tss_esapi::traits::{Marshall as _, UnMarshall as _};
use tss_esapi::{Context, Error, TctiNameConf};

use crate::endorsement::{attestation_template, policy_b_branches};
use crate::protocol::{
    Bytes, DeviceError, EndorsementKey, FORMAT_ONE, FORMAT_ONE_ERROR, Findings, Keys, LAYER,
    QuoteFor, Quoted, SEQUENCE,
};

/// The maximum number of quote attempts. The PCRs can change between the quote and the read of their values, for
/// example while the machine boots.
const ATTEMPTS: usize = 3;

/// The PCRs that firmware extends ("PC Client Platform Firmware Profile", PCR usage).
const FIRMWARE: [u8; 8] = [0, 1, 2, 3, 4, 5, 6, 7];

/// `TPM_RC_FAILURE` (Part 2, `TPM_RC`).
const FAILURE: u32 = 0x101;

/// `TPM_RC_HASH`, in format one.
const HASH: u32 = 0x83;

/// `TPM_RC_VALUE`, in format one.
const VALUE: u32 = 0x84;

/// The bits of a format-one code that are both set if the error refers to a parameter.
const PARAMETER: u32 = 0xc0;

const ACTIVATE: &str = "TPM2_ActivateCredential";
const CREATE: &str = "TPM2_CreatePrimary";
const QUOTE: &str = "TPM2_Quote";

/// A connection to a TPM.
#[derive(Debug)]
pub(crate) struct Device {
    context: Context,
}

/// Returns a function that creates the error of a command: the response code, or otherwise the message from the Rust
/// bindings.
fn at(step: &'static str) -> impl Fn(Error) -> DeviceError {
    move |error| {
        let step = step.to_owned();
        match response_code(error) {
            Some(code) => DeviceError::Code { step, code },
            None => DeviceError::Bindings {
                step,
                words: error.to_string(),
            },
        }
    }
}

impl Device {
    /// Connects to the TPM with this name in libtss2.
    pub(crate) fn open(tcti: &str) -> Result<Self, DeviceError> {
        let opened = TctiNameConf::from_str(tcti).and_then(Context::new);
        opened
            .map(|context| Self { context })
            .map_err(at("connecting"))
    }

    /// Returns the public areas of the endorsement key and the attestation key, and the certificates in the TPM.
    pub(crate) fn keys(&mut self, chosen: Option<EndorsementKey>) -> Result<Keys, DeviceError> {
        let (kind, certificate) = match chosen {
            Some(kind) => (kind, self.certificate(kind)?),
            None => self.choose()?,
        };
        let chain = match certificate {
            Some(_) => self.chain()?,
            None => Vec::new(),
        };
        let endorsement = self.with_ek(kind, |_, _, public| Ok(public.to_vec()))?;
        let attestation =
            self.with_primary(&attestation_template(), |_, _, public| Ok(public.to_vec()))?;
        let spki = kind.spki(&endorsement).ok_or(DeviceError::InvalidKey)?;
        Ok(Keys {
            endorsement: Bytes(endorsement),
            spki: Bytes(spki),
            certificate: certificate.map(Bytes),
            chain: Bytes(chain),
            attestation: Bytes(attestation),
        })
    }

    /// Returns the best key with a certificate in the TPM. Without such a key, returns the best persistent key. Without
    /// a persistent key, returns the best key that the TPM can create. A certificate takes precedence because any
    /// program can store a persistent key, which must not hide the key that the vendor certified.
    fn choose(&mut self) -> Result<(EndorsementKey, Option<Vec<u8>>), DeviceError> {
        for kind in EndorsementKey::ALL {
            let certificate = self.certificate(kind)?;
            // Some vendors define the index but leave it empty.
            if let Some(certificate) = certificate.filter(|stored| stored.starts_with(&SEQUENCE)) {
                return Ok((kind, Some(certificate)));
            }
        }
        for kind in EndorsementKey::ALL {
            if self.persistent(kind)?.is_some() {
                return Ok((kind, None));
            }
        }
        // Create only ECC keys, because a slow TPM might need too much time for an RSA key.
        let kind = if self.has_p384()? {
            EndorsementKey::EccP384
        } else {
            EndorsementKey::EccP256
        };
        Ok((kind, None))
    }

    /// Whether the TPM reports that it has P-384. TPMs of early specifications do not support this query, and `tss-esapi`
    /// rejects curves that it does not know.
    fn has_p384(&mut self) -> Result<bool, DeviceError> {
        let p384 = u32::from(u16::from(EccCurve::NistP384));
        let curves = self
            .context
            .get_capability(CapabilityType::EccCurves, p384, 1);
        match curves {
            Ok((CapabilityData::EccCurves(curves), _)) => {
                Ok(curves.contains(&EccCurve::NistP384.into()))
            }
            Ok(_) | Err(Error::WrapperError(_)) => Ok(false),
            Err(error) => {
                let error = at("TPM2_GetCapability")(error);
                if is_format_one(&error, VALUE) {
                    Ok(false)
                } else {
                    Err(error)
                }
            }
        }
    }

    /// Opens a challenge and quotes PCRs, qualified by the key binding with the secret of the challenge. One call does
    /// both, so that each key is created only once.
    pub(crate) fn quote(&mut self, asked: &QuoteFor) -> Result<Quoted, DeviceError> {
        let endorsement = asked.endorsement.0.as_slice();
        let kind = EndorsementKey::of(endorsement).ok_or(DeviceError::OtherKey)?;
        let malformed = |_: Error| DeviceError::OtherChallenge;
        let blob = IdObject::try_from(asked.credential_blob.0.clone()).map_err(malformed)?;
        let secret = asked.encrypted_secret.0.clone();
        let secret = EncryptedSecret::try_from(secret).map_err(malformed)?;
        self.with_ek(kind, |device, ek, public| {
            ensure!(public == endorsement, DeviceError::OtherKey);
            device.with_primary(&attestation_template(), |device, ak, attestation| {
                let opened = device.with_policy(kind, ek, |device, policy| {
                    let sessions = (Some(AuthSession::Password), Some(policy), None);
                    device
                        .context
                        .execute_with_sessions(sessions, |context| {
                            context.activate_credential(ak, ek, blob, secret)
                        })
                        .map_err(at(ACTIVATE))
                })?;
                let binding = KeyBinding::new(
                    &Provider::TPM,
                    &asked.audience,
                    &asked.provider_id,
                    &asked.node_name,
                    &asked.spki.0,
                    &[&asked.id.0, &opened],
                );
                let quote = device.settled_quote(ak, &binding, &asked.pcrs)?;
                let (attest, signature, pcrs) = quote;
                Ok(Quoted {
                    attestation: Bytes(attestation.to_vec()),
                    attest: Bytes(attest.marshall().map_err(at(QUOTE))?),
                    signature: Bytes(signature.marshall().map_err(at(QUOTE))?),
                    pcrs,
                })
            })
        })
    }

    /// Reads the TPM state that is only shown to users.
    pub(crate) fn examine(&mut self, kind: EndorsementKey) -> Result<Findings, DeviceError> {
        let has_certificate_index = self.defined(kind.certificate_index())?;
        let mut firmware = None;
        for bank in Bank::ALL {
            firmware = match self.read_pcrs(bank, &FIRMWARE) {
                Err(DeviceError::NoBank) => continue,
                read => Some(read?),
            };
            break;
        }
        Ok(Findings {
            has_certificate_index,
            firmware,
        })
    }

    /// Returns a quote over the first bank that has all of these PCRs, with the PCR values at the time of the quote.
    fn settled_quote(
        &mut self,
        ak: KeyHandle,
        qualifying: &KeyBinding,
        pcrs: &[u8],
    ) -> Result<(Attest, Signature, Registers), DeviceError> {
        for bank in Bank::ALL {
            match self.quote_over(ak, qualifying, bank, pcrs) {
                Err(DeviceError::NoBank) => {}
                quoted => return quoted,
            }
        }
        Err(DeviceError::NoBank)
    }

    fn quote_over(
        &mut self,
        ak: KeyHandle,
        qualifying: &KeyBinding,
        bank: Bank,
        pcrs: &[u8],
    ) -> Result<(Attest, Signature, Registers), DeviceError> {
        let selection = selection_of(bank, pcrs)?;
        for _ in 0..ATTEMPTS {
            let data = Data::try_from(qualifying.as_bytes().to_vec()).map_err(at(QUOTE))?;
            let (attest, signature) = self
                .context
                .execute_with_session(Some(AuthSession::Password), |context| {
                    context.quote(ak, data, SignatureScheme::Null, selection.clone())
                })
                .map_err(at(QUOTE))
                .map_err(without_hash)?;
            let AttestInfo::Quote { info } = attest.attested() else {
                return Err(DeviceError::NoBank);
            };
            // The TPM also returns a quote for a missing bank, but this quote does not cover any PCR.
            ensure!(info.pcr_selection() == &selection, DeviceError::NoBank);
            let read = self.read_pcrs(bank, pcrs)?;
            // The digest over the PCR values uses the hash algorithm of the signature, not of the bank.
            let digests = read.iter().map(|(_, digest)| digest);
            let digest = digests.fold(Sha256::new(), Sha256::chain_update);
            if **info.pcr_digest() == *digest.finalize() {
                return Ok((attest, signature, read));
            }
        }
        Err(DeviceError::Unsettled)
    }

    /// Reads the PCRs. A TPM returns at most eight values at a time, and no values of a missing bank. `tss-esapi` has a
    /// function to read PCRs, but that function never returns for a missing bank.
    fn read_pcrs(&mut self, bank: Bank, pcrs: &[u8]) -> Result<Registers, DeviceError> {
        let step = at("TPM2_PCR_Read");
        let mut wanted = selection_of(bank, pcrs)?;
        let mut values = BTreeMap::new();
        while !wanted.is_empty() {
            let (_, read, digests) = self
                .context
                .pcr_read(wanted.clone())
                .map_err(&step)
                .map_err(without_hash)?;
            let selected = read.get_selections().iter();
            let slots: Vec<PcrSlot> = selected.flat_map(PcrSelection::selected).collect();
            if slots.is_empty() || slots.len() != digests.len() {
                return Err(DeviceError::NoBank);
            }
            for (slot, digest) in slots.into_iter().zip(digests.value()) {
                let number = u8::try_from(u32::from(slot).trailing_zeros()).unwrap_or(u8::MAX);
                values.insert(number, digest.to_vec());
            }
            wanted.subtract(&read).map_err(&step)?;
        }
        Registers::of_bank(bank, values).ok_or(DeviceError::NoBank)
    }

    /// Returns the persistent key, if it matches its template.
    fn persistent(
        &mut self,
        kind: EndorsementKey,
    ) -> Result<Option<(KeyHandle, Vec<u8>)>, DeviceError> {
        if !self.defined(kind.persistent_handle())? {
            return Ok(None);
        }
        let step = at("TPM2_ReadPublic");
        let handle = PersistentTpmHandle::new(kind.persistent_handle()).map_err(&step)?;
        let object = self
            .context
            .tr_from_tpm_public(TpmHandle::Persistent(handle))
            .map_err(&step)?;
        let key = KeyHandle::from(object);
        let (public, _, _) = self.context.read_public(key).map_err(&step)?;
        let public = public.marshall().map_err(step)?;
        Ok((EndorsementKey::of(&public) == Some(kind)).then_some((key, public)))
    }

    /// Uses the persistent endorsement key, or otherwise creates the key and flushes it after use.
    fn with_ek<T>(
        &mut self,
        kind: EndorsementKey,
        use_it: impl FnOnce(&mut Self, KeyHandle, &[u8]) -> Result<T, DeviceError>,
    ) -> Result<T, DeviceError> {
        if let Some((key, public)) = self.persistent(kind)? {
            return use_it(self, key, &public);
        }
        let template = self.template(kind)?;
        self.with_primary(&template, use_it)
    }

    fn with_primary<T>(
        &mut self,
        template: &[u8],
        use_it: impl FnOnce(&mut Self, KeyHandle, &[u8]) -> Result<T, DeviceError>,
    ) -> Result<T, DeviceError> {
        let template = Public::unmarshall(template).map_err(at(CREATE))?;
        let made = self
            .context
            .execute_with_session(Some(AuthSession::Password), |context| {
                context.create_primary(Hierarchy::Endorsement, template, None, None, None, None)
            })
            .map_err(at(CREATE))?;
        let public = made.out_public.marshall().map_err(at(CREATE));
        let used = public.and_then(|public| use_it(self, made.key_handle, &public));
        self.and_flush(ObjectHandle::from(made.key_handle), used)
    }

    /// Uses a session that satisfies the endorsement key's policy. The session is salted with that key and encrypts the
    /// secret of the challenge, to protect it from eavesdropping on the bus to the TPM.
    fn with_policy<T>(
        &mut self,
        kind: EndorsementKey,
        ek: KeyHandle,
        use_it: impl FnOnce(&mut Self, AuthSession) -> Result<T, DeviceError>,
    ) -> Result<T, DeviceError> {
        let hash = match kind {
            EndorsementKey::Rsa2048 | EndorsementKey::EccP256 => HashingAlgorithm::Sha256,
            EndorsementKey::EccP384 => HashingAlgorithm::Sha384,
        };
        let cipher = SymmetricDefinition::AES_128_CFB;
        let session = self
            .context
            .start_auth_session(Some(ek), None, None, SessionType::Policy, cipher, hash)
            .map_err(at("TPM2_StartAuthSession"))?
            .ok_or(DeviceError::Question)?;
        let satisfied = self.satisfy(kind, session);
        let used = satisfied.and_then(|()| use_it(self, session));
        self.and_flush(SessionHandle::from(session).into(), used)
    }

    fn satisfy(&mut self, kind: EndorsementKey, session: AuthSession) -> Result<(), DeviceError> {
        let step = at("TPM2_PolicySecret");
        let (attributes, mask) = SessionAttributesBuilder::new()
            .with_decrypt(true)
            .with_encrypt(true)
            .build();
        self.context
            .tr_sess_set_attributes(session, attributes, mask)
            .map_err(&step)?;
        let policy = PolicySession::try_from(session).map_err(&step)?;
        // `PolicyA` is the authorization of the endorsement hierarchy, which must not have a password.
        self.context
            .execute_with_session(Some(AuthSession::Password), |context| {
                let (nonce, cp_hash) = (Nonce::default(), Digest::default());
                let owner = AuthHandle::Endorsement;
                context.policy_secret(policy, owner, nonce, cp_hash, Nonce::default(), None)
            })
            .map_err(step)?;
        if kind != EndorsementKey::EccP384 {
            return Ok(());
        }
        let step = at("TPM2_PolicyOR");
        let mut branches = DigestList::new();
        for branch in policy_b_branches() {
            let branch = Digest::try_from(branch).map_err(&step)?;
            branches.add(branch).map_err(&step)?;
        }
        self.context.policy_or(policy, branches).map_err(step)
    }

    /// Flushes `object`, even if `used` is an error, and returns `used`.
    fn and_flush<T>(
        &mut self,
        object: ObjectHandle,
        used: Result<T, DeviceError>,
    ) -> Result<T, DeviceError> {
        let flushed = self.context.flush_context(object);
        let value = used?;
        flushed.map(|()| value).map_err(at("TPM2_FlushContext"))
    }

    /// Classifies an error. Distinguishes failure mode from a failed command, which have the same code, and detects
    /// errors that the challenge caused.
    pub(crate) fn understand(&mut self, error: DeviceError) -> DeviceError {
        let DeviceError::Code { step, code } = &error else {
            return error;
        };
        // Some TPMs return `TPM_RC_FAILURE` for invalid padding. All parameters of this command come from the
        // challenge.
        let is_of_parameter = code & LAYER == 0 && code & PARAMETER == PARAMETER;
        let is_of_challenge = step == ACTIVATE && (*code == FAILURE || is_of_parameter);
        if *code == FAILURE && self.fails() {
            DeviceError::FailureMode
        } else if is_of_challenge {
            DeviceError::OtherChallenge
        } else {
            error
        }
    }

    fn fails(&mut self) -> bool {
        let asked = self
            .context
            .get_capability(CapabilityType::Handles, 0x8000_0000, 1);
        asked.is_err_and(|error| response_code(error) == Some(FAILURE))
    }
}

/// Maps the error of a bank whose hash the TPM does not implement to a missing bank.
fn without_hash(error: DeviceError) -> DeviceError {
    if is_format_one(&error, HASH) {
        return DeviceError::NoBank;
    }
    error
}

/// Whether the TPM returned this format-one error, for any handle or parameter.
fn is_format_one(error: &DeviceError, number: u32) -> bool {
    let is_it = |code: u32| {
        code & LAYER == 0 && code & FORMAT_ONE != 0 && code & FORMAT_ONE_ERROR == number
    };
    matches!(error, DeviceError::Code { code, .. } if is_it(*code))
}

fn selection_of(bank: Bank, pcrs: &[u8]) -> Result<PcrSelectionList, DeviceError> {
    let hash = match bank {
        Bank::Sha256 => HashingAlgorithm::Sha256,
        Bank::Sha384 => HashingAlgorithm::Sha384,
    };
    let slots: Result<Vec<PcrSlot>, Error> = pcrs
        .iter()
        .map(|number| PcrSlot::try_from(1_u32.checked_shl((*number).into()).unwrap_or_default()))
        .collect();
    slots
        .and_then(|slots| {
            PcrSelectionList::builder()
                .with_selection(hash, &slots)
                .build()
        })
        .map_err(at(QUOTE))
}

/// Returns the number of a response code. `tss-esapi` classifies codes without their layer, and returns the number only
/// as text.
fn response_code(error: Error) -> Option<u32> {
    let Error::Tss2Error(code) = error else {
        return None;
    };
    let text = match code {
        Tss2ResponseCode::Success => return Some(0),
        Tss2ResponseCode::FormatZero(code) => code.to_string(),
        Tss2ResponseCode::FormatOne(code) => code.to_string(),
    };
    let (_, digits) = text.rsplit_once("0x")?;
    u32::from_str_radix(digits, 16).ok()
}
