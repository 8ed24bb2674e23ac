//! Writes the seeds of every target to the directories in which `cargo fuzz` searches for them.

use std::path::Path;
use std::{fs, io};

use kubelet_authenticator_fuzz::TARGETS;

fn main() -> io::Result<()> {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    for target in TARGETS {
        let folder = corpus.join(target.name);
        fs::create_dir_all(&folder)?;
        for (number, seed) in (target.seeds)().into_iter().enumerate() {
            fs::write(folder.join(format!("seed-{number}")), seed)?;
        }
    }
    Ok(())
}
