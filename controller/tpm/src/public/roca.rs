//! The fingerprint of weak RSA keys whose primes have the form `k * M + (65537^a mod M)`. A library in many TPMs
//! generated such keys, and attackers can factor them (CVE-2017-15361; Nemec and others, "The Return of Coppersmith's
//! Attack", section 2.3).

/// The first factors of `M`. The rate of false positives is one in 200 million moduli.
const PRIMES: [u32; 38] = [
    3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59, 61, 67, 71, 73, 79, 83, 89, 97,
    101, 103, 107, 109, 113, 127, 131, 137, 139, 149, 151, 157, 163, 167,
];

const GENERATOR: u32 = 65537;

/// Whether the modulus is a power of 65537 modulo each of the primes.
pub(super) fn is_marked(modulus: &[u8]) -> bool {
    PRIMES.iter().all(|prime| {
        let remainder = modulus.iter().fold(0, |remainder, byte| {
            (remainder * 256 + u32::from(*byte)) % prime
        });
        is_power(remainder, *prime)
    })
}

fn is_power(remainder: u32, prime: u32) -> bool {
    let mut power = 1;
    loop {
        if power == remainder {
            return true;
        }
        power = power * (GENERATOR % prime) % prime;
        if power == 1 {
            return false;
        }
    }
}
