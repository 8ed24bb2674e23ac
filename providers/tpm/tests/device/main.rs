//! Tests of the TPM helper with software TPMs.

#[cfg(test)]
mod bed;
#[cfg(test)]
mod errors;
#[cfg(test)]
mod keys;
#[cfg(test)]
mod liar;
#[cfg(test)]
mod quotes;
