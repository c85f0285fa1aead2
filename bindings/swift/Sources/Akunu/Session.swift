import CAkunu
import Foundation

typealias PieceListener = Listener<(Piece) -> Bool>

let forwardPiece: akunu_on_piece = { piece, user in
    PieceListener.at(user)(Piece(piece!.pointee)) ? AKUNU_CONTINUE : AKUNU_STOP
}

/// A sequence of tokens in a model's KV cache. Generations of a model's sessions run one after the other.
public final class Session: @unchecked Sendable {
    public let model: Model
    let handle: OpaquePointer

    public init(_ model: Model) throws {
        var made: OpaquePointer?
        try check(akunu_create_session(model.handle, &made))
        self.model = model
        handle = made!
    }

    deinit {
        let handle = Handle(handle)
        let model = model
        release {
            // The model's memory is needed until then.
            withExtendedLifetime(model) { akunu_free_session(handle.pointer) }
        }
    }

    public func set(_ sampling: Sampling) throws {
        var settings = sampling.c
        try check(akunu_set_sampling(handle, &settings))
        try sampling.withBreakers { try check(akunu_set_dry_breakers(handle, $0, $1)) }
    }

    /// The tokens in the cache.
    public var tokens: [UInt32] {
        get throws { try filled(0) { akunu_session_tokens(handle, $0, $1, $2) } }
    }

    /// Removes all but the first `length` tokens.
    public func truncate(_ length: Int) throws {
        try check(akunu_session_truncate(handle, length))
    }

    /// Cancels what runs or waits in this session.
    public func cancel() {
        _ = akunu_cancel(handle)
    }

    /// Generates the continuation of a prompt. What the cache has of it is not processed again.
    public func generate(_ prompt: [UInt32], _ limits: Limits = Limits()) -> Generation<Piece> {
        run { session, piece, user, stats in
            try limits.withOptions { options in
                try check(akunu_generate(session.handle, prompt, prompt.count, &options, piece, user, &stats))
            }
        }
    }

    public func generate(_ prompt: String, _ limits: Limits = Limits()) throws -> Generation<Piece> {
        generate(try model.encode(prompt), limits)
    }

    /// Generates on after all text of the session and further tokens.
    public func proceed(_ tokens: [UInt32] = [], _ limits: Limits = Limits()) -> Generation<Piece> {
        run { session, piece, user, stats in
            try limits.withOptions { options in
                try check(akunu_generate_continue(session.handle, tokens, tokens.count, &options, piece, user, &stats))
            }
        }
    }

    private func run(
        _ call: @escaping @Sendable (
            Session, @escaping akunu_on_piece, UnsafeMutableRawPointer, inout akunu_stats
        ) throws -> Void
    ) -> Generation<Piece> {
        let found = Shared<Stats?>(nil)
        let items = stream(cancel: { [weak self] in self?.cancel() }) { add in
            var stats = Stats.empty
            try PieceListener(add).withPointer { try call(self, forwardPiece, $0, &stats) }
            found.with { $0 = Stats(stats) }
        }
        return Generation(items: items, found: found)
    }
}
