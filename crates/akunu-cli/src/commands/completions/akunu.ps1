# Completion of akunu's command line for PowerShell.

Register-ArgumentCompleter -Native -CommandName akunu -ScriptBlock {
    param($wordToComplete, $commandAst, $cursorPosition)
    $before = @($commandAst.CommandElements | Where-Object { $_.Extent.EndOffset -lt $cursorPosition })
    $words = @($before | Select-Object -Skip 1 | ForEach-Object { $_.ToString() })
    $program = $commandAst.CommandElements[0].ToString()
    # Without candidates, PowerShell itself lists files.
    & $program __complete "--current=$wordToComplete" -- @words 2>$null | Select-Object -Skip 1 | ForEach-Object {
        $word, $about = $_ -split "`t", 2
        if (-not $about) { $about = $word }
        [System.Management.Automation.CompletionResult]::new($word, $word, 'ParameterValue', $about)
    }
}
