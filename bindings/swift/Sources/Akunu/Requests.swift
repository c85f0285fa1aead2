import CAkunu
import Foundation

/// A request, freed with its last reference.
final class Request: @unchecked Sendable {
    private let model: Model
    let handle: OpaquePointer

    init(_ model: Model, _ handle: OpaquePointer) {
        self.model = model
        self.handle = handle
    }

    deinit { _ = akunu_free_request(handle) }

    func cancel() { _ = akunu_cancel_request(handle) }

    /// Gives all pieces to `add`.
    func run(_ add: (Piece) -> Bool) throws -> Stats? {
        var piece: UnsafePointer<akunu_piece>?
        var isOver: UInt32 = 0
        while isOver == 0 {
            try check(akunu_next_piece(handle, UInt32.max, &piece, &isOver))
            if let piece, !add(Piece(piece.pointee)) { cancel() }
        }
        var stats = Stats.empty
        try check(akunu_request_stats(handle, &stats))
        return Stats(stats)
    }
}

extension Model {
    /// Submits a request, which shares passes with others. The model was loaded with `batch`. Lower priorities come
    /// first.
    public func submit(
        _ prompt: [UInt32], _ limits: Limits = Limits(), sampling: Sampling = Sampling(), priority: Int32 = 0
    ) throws -> Generation<Piece> {
        var made: OpaquePointer?
        try limits.withOptions { options in
            var settings = sampling.c
            try sampling.withBreakers { breakers, count in
                try withUnsafePointer(to: &settings) { settings in
                    var how = akunu_request_options()
                    how.size = size(akunu_request_options.self)
                    how.priority = priority
                    how.sampling = settings
                    how.dry_breakers = breakers
                    how.dry_breaker_count = count
                    try check(akunu_submit(handle, prompt, prompt.count, &options, &how, &made))
                }
            }
        }
        let request = Request(self, made!)
        let found = Shared<Stats?>(nil)
        let items = stream(cancel: { [weak request] in request?.cancel() }) { (add: @escaping (Piece) -> Bool) in
            let stats = try request.run(add)
            found.with { $0 = stats }
        }
        return Generation(items: items, found: found)
    }
}
