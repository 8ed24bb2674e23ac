//! Platform configuration registers (PCRs) and their values.

use std::collections::BTreeMap;

use data_encoding::HEXLOWER;
use serde::{Deserialize, Serialize, Serializer};

use crate::members::Members;

/// The last register of a PC ("PC Client Platform TPM Profile", 24 registers).
pub const MAX_REGISTER: u8 = 23;

/// A bank of registers, identified by its hash algorithm.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Bank {
    /// SHA-256.
    #[default]
    Sha256,
    /// SHA-384. On some TPMs, only this bank is reliable for quotes.
    Sha384,
}

/// Registers from the same bank, each with its digest.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Members<String>")]
pub struct Registers {
    bank: Bank,
    /// Each digest has the length of the bank's hash.
    digests: BTreeMap<u8, Vec<u8>>,
}

impl Bank {
    /// The accepted banks, in order of preference.
    pub const ALL: [Self; 2] = [Self::Sha256, Self::Sha384];

    /// The length of the bank's digests, which identifies the bank.
    pub fn digest_len(self) -> usize {
        match self {
            Self::Sha256 => 32,
            Self::Sha384 => 48,
        }
    }
}

impl Registers {
    /// Creates registers of the SHA-256 bank. `None` if a number is above [`MAX_REGISTER`].
    pub fn new(registers: BTreeMap<u8, [u8; 32]>) -> Option<Self> {
        let digests = registers.into_iter();
        let digests = digests.map(|(number, digest)| (number, digest.to_vec()));
        Self::of_bank(Bank::Sha256, digests.collect())
    }

    /// Creates registers of a bank. `None` if a number is above [`MAX_REGISTER`], or a digest has the wrong length.
    pub fn of_bank(bank: Bank, digests: BTreeMap<u8, Vec<u8>>) -> Option<Self> {
        let fit = digests
            .iter()
            .all(|(number, digest)| *number <= MAX_REGISTER && digest.len() == bank.digest_len());
        fit.then_some(Self { bank, digests })
    }

    /// The bank.
    pub fn bank(&self) -> Bank {
        self.bank
    }

    /// The registers with their digests, in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = (u8, &[u8])> {
        let digests = self.digests.iter();
        digests.map(|(number, digest)| (*number, digest.as_slice()))
    }

    /// The digest of a register in the SHA-256 bank. `None` if the registers belong to a different bank.
    pub fn get(&self, number: u8) -> Option<&[u8; 32]> {
        self.digests.get(&number)?.as_slice().try_into().ok()
    }
}

impl Serialize for Registers {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let named = self.iter();
        serializer.collect_map(named.map(|(number, digest)| (number, HEXLOWER.encode(digest))))
    }
}

impl TryFrom<Members<String>> for Registers {
    type Error = &'static str;

    fn try_from(Members(named): Members<String>) -> Result<Self, &'static str> {
        let register = |(number, digest): (String, String)| {
            let number = number_of(&number).ok_or("invalid PCR number")?;
            let digest = HEXLOWER.decode(digest.as_bytes()).ok();
            let digest = digest.ok_or("a PCR value is not in lower-case hexadecimal digits")?;
            Ok::<_, Self::Error>((number, digest))
        };
        let digests = named.into_iter().map(register);
        let digests: BTreeMap<u8, Vec<u8>> = digests.collect::<Result<_, _>>()?;
        let fits = |bank: &Bank| {
            let mut digests = digests.values();
            digests.all(|digest| digest.len() == bank.digest_len())
        };
        let bank = Bank::ALL.into_iter().find(fits);
        bank.and_then(|bank| Self::of_bank(bank, digests))
            .ok_or("the PCR values must all have 64 digits, or all have 96 digits")
    }
}

/// Parses a register number. Each number has only one accepted spelling.
fn number_of(text: &str) -> Option<u8> {
    let number = text.parse().ok()?;
    (number <= MAX_REGISTER && text == format!("{number}")).then_some(number)
}
