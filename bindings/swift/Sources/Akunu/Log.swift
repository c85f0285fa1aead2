import CAkunu
import Foundation

public enum LogLevel: UInt32, Sendable, Comparable {
    case error = 1, warning, info, debug

    public static func < (a: LogLevel, b: LogLevel) -> Bool { a.rawValue < b.rawValue }
}

private typealias LogListener = Listener<@Sendable (LogLevel, String) -> Void>

/// The listener of the library, which calls it from any thread.
private let current = Shared<LogListener?>(nil)

private let forwardLog: akunu_on_log = { level, message, user in
    guard let level = LogLevel(rawValue: level), let message else { return }
    LogListener.at(user)(level, String(cString: message))
}

/// Passes the library's messages up to `level` to a function, in place of an earlier one; nil: to none. It is called
/// on any thread, and several times at once.
public func setLog(_ level: LogLevel = .info, _ listener: (@Sendable (LogLevel, String) -> Void)?) throws {
    let new = listener.map { LogListener($0) }
    let user = new.map { Unmanaged.passUnretained($0).toOpaque() }
    try current.with { current in
        try check(akunu_set_log(new == nil ? nil : forwardLog, user, level.rawValue))
        // The earlier one is not called any more.
        current = new
    }
}

/// The version of the library.
public var version: String { String(cString: akunu_version()) }
