//! The PKCS #11 token.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use cryptoki::context::{CInitializeArgs, CInitializeFlags, Pkcs11};
use cryptoki::error::{Error, RvError};
use cryptoki::mechanism::Mechanism;
use cryptoki::object::{Attribute, ObjectClass, ObjectHandle};
use cryptoki::session::{Session, UserType};
use cryptoki::slot::Slot;
use cryptoki::types::AuthPin;
use node_attestation_signer_api::SignatureAlgorithm;
use parking_lot::Mutex;
use sha2::{Digest as _, Sha256, Sha384, Sha512};
use x509_cert::der::asn1::UintRef;
use x509_cert::der::{self, Encode as _};
use zeroize::Zeroizing;

/// A token, identified by its label.
pub(crate) struct Token {
    library: Pkcs11,
    label: String,
    pin: AuthPin,
    /// Set after the token rejected the PIN, because another attempt could lock the token.
    is_pin_refused: AtomicBool,
    /// A session that remains open as long as the process runs. Without it, the login would end when the last session
    /// of a call is closed.
    login: Mutex<Option<Session>>,
}

/// The operations of a token. Each operation blocks until the token responds, without a deadline.
pub(crate) trait Keys: Send + Sync + 'static {
    /// Checks that the token is present, and accepts the login.
    fn check(&self) -> Result<(), TokenError>;

    /// Checks that the token has exactly one private key with this label.
    fn check_key(&self, label: &str) -> Result<(), TokenError>;

    /// Signs with the private key that has this label. The signature has the same encoding as in certificates.
    fn sign(
        &self,
        label: &str,
        algorithm: SignatureAlgorithm,
        message: &[u8],
    ) -> Result<Vec<u8>, TokenError>;
}

/// The token cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum TokenError {
    /// The library cannot be loaded.
    #[error("cannot load the PKCS #11 library {}", path.display())]
    Library {
        /// The path of the library.
        path: PathBuf,
        /// The reason.
        source: Error,
    },
    /// A token with the label does not exist.
    #[error("token {0:?} does not exist")]
    NoToken(String),
    /// Several tokens have the label, so the signer cannot determine to which token the PIN belongs.
    #[error("{count} tokens have the label {label:?}, but exactly one is required")]
    Tokens {
        /// The label.
        label: String,
        /// The number of tokens with the label.
        count: usize,
    },
    /// The PIN is wrong or locked.
    #[error(
        "the token rejected the PIN, and the signer does not retry it. Correct the PIN file, then restart the signer"
    )]
    PinRefused,
    /// The number of private keys with the label is not exactly one.
    #[error("{count} private keys have the label {label:?}, but exactly one is required")]
    Key {
        /// The label.
        label: String,
        /// The number of keys with the label.
        count: usize,
    },
    /// The algorithm in the request is not supported.
    #[error("the algorithm is unknown")]
    Algorithm,
    /// The token's response is not a valid signature.
    #[error("cannot encode the token's signature")]
    Encoding(#[source] der::Error),
    /// An operation of the token failed.
    #[error("the token failed")]
    Failed(#[from] Error),
}

impl Token {
    /// Loads the library, and logs in. If the token rejects the PIN, this function still returns the token. If this
    /// function returned an error, a supervisor would restart the process, and each restart would use one of the
    /// token's few attempts.
    pub(crate) fn open(
        library: &Path,
        label: &str,
        pin: &Zeroizing<String>,
    ) -> Result<Self, TokenError> {
        let failed = |source| TokenError::Library {
            path: library.to_owned(),
            source,
        };
        let loaded = Pkcs11::new(library).map_err(failed)?;
        let locking = CInitializeArgs::new(CInitializeFlags::OS_LOCKING_OK);
        loaded.initialize(locking).map_err(failed)?;
        let token = Self {
            library: loaded,
            label: label.to_owned(),
            pin: AuthPin::new(pin.as_str().into()),
            is_pin_refused: AtomicBool::new(false),
            login: Mutex::default(),
        };
        match token.check() {
            Ok(()) => Ok(token),
            Err(error @ TokenError::PinRefused) => {
                tracing::error!(%error, "cannot sign");
                Ok(token)
            }
            Err(error) => Err(error),
        }
    }

    /// Opens a session that is logged in.
    fn session(&self) -> Result<Session, TokenError> {
        let slot = self.slot()?;
        let session = self.library.open_ro_session(slot)?;
        let mut login = self.login.lock();
        if self.is_pin_refused.load(Ordering::Relaxed) {
            return Err(TokenError::PinRefused);
        }
        match session.login(UserType::User, Some(&self.pin)) {
            Ok(()) => {
                // An existing session belongs to a token that was removed, so it is replaced.
                *login = Some(self.library.open_ro_session(slot)?);
                Ok(session)
            }
            Err(Error::Pkcs11(RvError::UserAlreadyLoggedIn, _)) => Ok(session),
            Err(Error::Pkcs11(
                RvError::PinIncorrect
                | RvError::PinLocked
                | RvError::PinExpired
                | RvError::PinInvalid
                | RvError::PinLenRange,
                _,
            )) => {
                self.is_pin_refused.store(true, Ordering::Relaxed);
                Err(TokenError::PinRefused)
            }
            Err(error) => Err(error.into()),
        }
    }

    fn slot(&self) -> Result<Slot, TokenError> {
        let slots = self.library.get_slots_with_token()?.into_iter();
        let read = slots.map(|slot| {
            let info = self.library.get_token_info(slot);
            info.map(|info| (slot, info.label().to_owned()))
        });
        labelled(read, &self.label)
    }
}

impl Keys for Token {
    fn check(&self) -> Result<(), TokenError> {
        self.session().map(drop)
    }

    fn check_key(&self, label: &str) -> Result<(), TokenError> {
        key(&self.session()?, label).map(drop)
    }

    fn sign(
        &self,
        label: &str,
        algorithm: SignatureAlgorithm,
        message: &[u8],
    ) -> Result<Vec<u8>, TokenError> {
        let session = self.session()?;
        let key = key(&session, label)?;
        // All tokens support CKM_ECDSA, which signs digests.
        let digest = match algorithm {
            SignatureAlgorithm::Unspecified => return Err(TokenError::Algorithm),
            SignatureAlgorithm::RsaPkcs1Sha256 => {
                return Ok(session.sign(&Mechanism::Sha256RsaPkcs, key, message)?);
            }
            SignatureAlgorithm::EcdsaP256Sha256 => Sha256::digest(message).to_vec(),
            SignatureAlgorithm::EcdsaP384Sha384 => Sha384::digest(message).to_vec(),
            SignatureAlgorithm::EcdsaP521Sha512 => Sha512::digest(message).to_vec(),
        };
        let numbers = session.sign(&Mechanism::Ecdsa, key, &digest)?;
        ecdsa_signature(&numbers).map_err(TokenError::Encoding)
    }
}

/// Returns the slot of the token with this label. Other slots can be unreadable.
fn labelled<S>(
    slots: impl IntoIterator<Item = Result<(S, String), Error>>,
    label: &str,
) -> Result<S, TokenError> {
    let (mut found, mut unreadable) = (Vec::new(), None);
    for slot in slots {
        match slot {
            Ok((slot, own)) if own == label => found.push(slot),
            Ok(_) => {}
            Err(error) => unreadable = Some(error),
        }
    }
    let count = found.len();
    match (found.pop(), unreadable) {
        (Some(slot), _) if count == 1 => Ok(slot),
        (Some(_), _) => Err(TokenError::Tokens {
            label: label.to_owned(),
            count,
        }),
        // The slot that cannot be read could contain the token.
        (None, Some(error)) => Err(error.into()),
        (None, None) => Err(TokenError::NoToken(label.to_owned())),
    }
}

fn key(session: &Session, label: &str) -> Result<ObjectHandle, TokenError> {
    let template = [
        Attribute::Class(ObjectClass::PRIVATE_KEY),
        Attribute::Label(label.as_bytes().to_vec()),
    ];
    let found = session.find_objects(&template)?;
    match found.as_slice() {
        [key] => Ok(*key),
        others => Err(TokenError::Key {
            label: label.to_owned(),
            count: others.len(),
        }),
    }
}

/// Encodes the two numbers that PKCS #11 returns, one after the other, as an `Ecdsa-Sig-Value` (RFC 3279 section
/// 2.2.3).
fn ecdsa_signature(numbers: &[u8]) -> der::Result<Vec<u8>> {
    let (r, s) = numbers.split_at(numbers.len().div_euclid(2));
    let numbers = [UintRef::new(r)?.to_der()?, UintRef::new(s)?.to_der()?];
    der::asn1::Any::new(der::Tag::Sequence, numbers.concat())?.to_der()
}

#[cfg(test)]
mod tests {
    use cryptoki::context::Function;

    use super::*;

    /// The number of the selected slot, if the slots contain these tokens. `None` represents a slot that cannot be
    /// read.
    fn chosen(tokens: &[Option<&str>]) -> Result<usize, String> {
        let slots = tokens.iter().enumerate();
        let slots = slots.map(|(slot, token)| {
            let label = token.ok_or(Error::Pkcs11(RvError::DeviceError, Function::GetTokenInfo))?;
            Ok((slot, label.to_owned()))
        });
        labelled(slots, "clusters").map_err(|error| error.to_string())
    }

    #[test]
    fn an_unreadable_slot_does_not_hide_other_tokens() {
        assert_eq!(chosen(&[None, Some("other"), Some("clusters")]), Ok(2));
        assert_eq!(chosen(&[Some("clusters"), None]), Ok(0));
        assert_eq!(
            chosen(&[Some("other"), None]),
            Err("the token failed".to_owned())
        );
        let none = Err("token \"clusters\" does not exist".to_owned());
        assert_eq!(chosen(&[Some("other")]), none);
    }

    #[test]
    fn two_tokens_with_the_same_label_are_refused() {
        let two = "2 tokens have the label \"clusters\", but exactly one is required".to_owned();
        assert_eq!(
            chosen(&[Some("clusters"), None, Some("clusters")]),
            Err(two)
        );
    }

    #[test]
    fn the_integers_in_a_signature_are_minimal_der() {
        let numbers = [[0, 0, 1, 2], [0x80, 0, 0, 1]].concat();

        let signature = ecdsa_signature(&numbers).unwrap();

        let expected = [
            0x30, 11, 0x02, 2, 1, 2, // r
            0x02, 5, 0, 0x80, 0, 0, 1, // s
        ];
        assert_eq!(signature, expected);
    }
}
