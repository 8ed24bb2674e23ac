//! The program that speaks to the TPM, on TPMs in software.

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
