# Template: `cargo xtask packages` fills in the version and the checksums of a release.
class Akunu < Formula
  desc "Inference engine for transformer models"
  homepage "https://github.com/akunu-project/akunu"
  version "@VERSION@"
  license "MIT"

  on_macos do
    on_arm do
      url "https://github.com/akunu-project/akunu/releases/download/v@VERSION@/akunu-@VERSION@-aarch64-apple-darwin.tar.gz"
      sha256 "@SHA256 aarch64-apple-darwin.tar.gz@"
    end
    on_intel do
      url "https://github.com/akunu-project/akunu/releases/download/v@VERSION@/akunu-@VERSION@-x86_64-apple-darwin.tar.gz"
      sha256 "@SHA256 x86_64-apple-darwin.tar.gz@"
    end
  end

  on_linux do
    on_arm do
      url "https://github.com/akunu-project/akunu/releases/download/v@VERSION@/akunu-@VERSION@-aarch64-unknown-linux-gnu.tar.gz"
      sha256 "@SHA256 aarch64-unknown-linux-gnu.tar.gz@"
    end
    on_intel do
      url "https://github.com/akunu-project/akunu/releases/download/v@VERSION@/akunu-@VERSION@-x86_64-unknown-linux-gnu.tar.gz"
      sha256 "@SHA256 x86_64-unknown-linux-gnu.tar.gz@"
    end
  end

  def install
    bin.install "bin/akunu"
    man1.install Dir["share/man/man1/*.1"]
    bash_completion.install "share/bash-completion/completions/akunu"
    zsh_completion.install "share/zsh/site-functions/_akunu"
    fish_completion.install "share/fish/vendor_completions.d/akunu.fish"
    doc.install Dir["share/doc/akunu/*"]
  end

  test do
    system bin/"akunu", "run", "Once upon a time", "-n", "8"
  end
end
