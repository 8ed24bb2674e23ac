//! The tokens that one instance's service has issued.

use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE;

/// The maximum lifetime in seconds: 6 hours.
const LONGEST: u32 = 21_600;

/// The issued tokens, with their expiry times.
#[derive(Debug, Default)]
pub(super) struct Sessions {
    tokens: Vec<(String, Instant)>,
}

impl Sessions {
    /// Issues a token with a lifetime of `ttl` seconds. Returns `None` if the lifetime is invalid.
    pub(super) fn open(&mut self, ttl: Option<u32>) -> Option<(String, u32)> {
        let ttl = ttl.filter(|ttl| (1..=LONGEST).contains(ttl))?;
        let mut random = [0; 42];
        aws_lc_rs::rand::fill(&mut random).expect("random bytes");
        let token = URL_SAFE.encode(random);
        let end = Instant::now() + Duration::from_secs(ttl.into());
        self.tokens.push((token.clone(), end));
        Some((token, ttl))
    }

    /// The remaining lifetime of this token in seconds.
    pub(super) fn left(&self, token: &str) -> Option<u64> {
        let (_, end) = self.tokens.iter().find(|(known, _)| known == token)?;
        let left = end.checked_duration_since(Instant::now())?;
        Some(left.as_secs())
    }

    pub(super) fn clear(&mut self) {
        self.tokens.clear();
    }
}
